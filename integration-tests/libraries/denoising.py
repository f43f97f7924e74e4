"""The trainers of two small projects as they are: denoising-diffusion-pytorch in one dimension, and imagen-pytorch.

Both set attributes of their Accelerator, keep averages on the main process, and write and read states of their own.
"""

import sys
from pathlib import Path

import tiny
import torch
import vision_stub  # noqa: F401 -- before the projects, which import what it stands for
from accelerate.utils import set_seed
from transformers import T5Config

T5Config.from_pretrained = classmethod(
    lambda cls, name: cls(d_model=8)
)  # the width of a model that is not there
from denoising_diffusion_pytorch import GaussianDiffusion1D, Trainer1D, Unet1D  # noqa: E402
from imagen_pytorch import Imagen, ImagenTrainer, Unet  # noqa: E402

FOLDER = Path(sys.argv[1])
NUM_RANKS = tiny.world_size()


class Same(torch.utils.data.Dataset):
    """Rows that are all the same: their order is not."""

    def __init__(self, *shape):
        self.row = torch.linspace(0, 1, torch.Size(shape).numel()).reshape(shape)

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return self.row


def sum_of(module):
    return sum(
        value.double().sum().item() for value in module.state_dict().values() if value.is_floating_point()
    )


def one_dimension():
    def make(steps):
        set_seed(1)
        model = GaussianDiffusion1D(Unet1D(dim=8, dim_mults=(1, 2), channels=2), seq_length=16, timesteps=8)
        return Trainer1D(
            model, Same(2, 16), train_batch_size=4, train_lr=1e-2, train_num_steps=steps, gradient_accumulate_every=2,
            ema_update_every=1, save_and_sample_every=2, num_samples=4, results_folder=str(FOLDER / "one"),
            split_batches=False,
        )  # fmt: skip

    def train(trainer):
        next(trainer.dl)  # shuffling draws random numbers
        set_seed(2 + trainer.accelerator.process_index)
        trainer.train()
        trainer.accelerator.wait_for_everyone()
        averages = [sum_of(trainer.ema.ema_model)] if trainer.accelerator.is_main_process else []
        return [sum_of(trainer.accelerator.unwrap_model(trainer.model)), *averages]

    trainer = make(4)
    numbers = train(trainer)
    samples = torch.load(FOLDER / "one" / "sample-2.png").flatten().tolist()
    again = make(6)
    again.load(2)
    return {"weights": numbers, "samples": samples, "weights, resumed": train(again)}


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

    class Rows(Same):
        def __init__(self):
            super().__init__(3, 8, 8)

        def __getitem__(self, index):
            return self.row, torch.ones(4, 8)

    def train(trainer):
        set_seed(4 + trainer.accelerator.process_index)
        losses = [trainer.train_step(unet_number=1) for _ in range(3)]
        return [*losses, sum_of(trainer.imagen.unets[0]), trainer.get_lr(1)]

    trainer = make()
    numbers = train(trainer)
    trainer.save(str(FOLDER / "imagen.pt"))
    trainer.accelerator.wait_for_everyone()
    ImagenTrainer.locked = False  # it counts trainers of a process
    again = make()
    again.load(str(FOLDER / "imagen.pt"))
    return {"imagen": numbers, "imagen, resumed": train(again)}


tiny.report(one_dimension() | images_of_text())
