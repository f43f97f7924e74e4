"""The trainer of denoising-diffusion-pytorch in one dimension: averages on the main process, its own states."""

import sys
from pathlib import Path

import images  # before the project, which imports what it stands for
import tiny
import torch
from accelerate.utils import set_seed
from denoising_diffusion_pytorch import GaussianDiffusion1D, Trainer1D, Unet1D

FOLDER = Path(sys.argv[1])


def one_dimension():
    def make(steps):
        set_seed(1)
        model = GaussianDiffusion1D(Unet1D(dim=8, dim_mults=(1, 2), channels=2), seq_length=16, timesteps=8)
        return Trainer1D(
            model, images.Same(2, 16), train_batch_size=4, train_lr=1e-2, train_num_steps=steps,
            gradient_accumulate_every=2,
            ema_update_every=1, save_and_sample_every=2, num_samples=4, results_folder=str(FOLDER / "one"),
            split_batches=False,
        )  # fmt: skip

    def train(trainer):
        next(trainer.dl)  # shuffling draws random numbers
        set_seed(2 + trainer.accelerator.process_index)
        trainer.train()
        trainer.accelerator.wait_for_everyone()
        averages = [images.sum_of(trainer.ema.ema_model)] if trainer.accelerator.is_main_process else []
        return [images.sum_of(trainer.accelerator.unwrap_model(trainer.model)), *averages]

    trainer = make(4)
    numbers = train(trainer)
    samples = torch.load(FOLDER / "one" / "sample-2.png").flatten().tolist()
    found = {"weights": numbers, "samples": samples}
    if (
        trainer.accelerator.num_processes == 1
    ):  # with Accelerate, ranks are on `cpu:0`, which `torch.load` refuses
        again = make(6)
        again.load(2)
        found["weights, resumed"] = train(again)
    return found


tiny.report(one_dimension())
