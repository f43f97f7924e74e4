"""The trainer of imagen-pytorch, which assigns attributes of its Accelerator and resumes from its own states."""

import sys
from pathlib import Path

import images  # before the project, which imports what it stands for
import tiny
import torch
from accelerate.utils import set_seed
from transformers import T5Config

T5Config.from_pretrained = classmethod(
    lambda cls, name: cls(d_model=8)
)  # the width of a model that is not there
from imagen_pytorch import Imagen, ImagenTrainer, Unet  # noqa: E402

FOLDER = Path(sys.argv[1])


def images_of_text():
    def make():
        set_seed(3)
        unet = Unet(
            dim=8, cond_dim=8, dim_mults=(1, 2), num_resnet_blocks=1, layer_attns=(False, True), attn_heads=2,
            attn_dim_head=4, text_embed_dim=8, max_text_len=4,
        )  # fmt: skip
        imagen = Imagen(unet, image_sizes=8, timesteps=4, text_embed_dim=8, text_encoder_name="t5")
        trainer = ImagenTrainer(imagen, lr=1e-2, warmup_steps=2, max_grad_norm=0.5, split_batches=False)
        trainer.add_train_dataset(Rows(), batch_size=4)
        return trainer

    class Rows(images.Same):
        def __init__(self):
            super().__init__(3, 8, 8)

        def __getitem__(self, index):
            return self.row, torch.ones(4, 8)

    def train(trainer):
        set_seed(4 + trainer.accelerator.process_index)
        losses = [trainer.train_step(unet_number=1) for _ in range(3)]
        return [*losses, images.sum_of(trainer.imagen.unets[0]), trainer.get_lr(1)]

    trainer = make()
    numbers = train(trainer)
    trainer.save(str(FOLDER / "imagen.pt"))
    trainer.accelerator.wait_for_everyone()
    ImagenTrainer.locked = False  # it counts trainers of a process
    again = make()
    again.load(str(FOLDER / "imagen.pt"))
    return {"imagen": numbers, "imagen, resumed": train(again)}


tiny.report(images_of_text())
