"""A script in the manner of those that teach diffusers' models: only the main process saves states.

It drops old ones, is run again from the newest checkpoint, and writes a pipeline in the end.
"""

import shutil
import sys
from pathlib import Path

import tiny
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, compute_snr

FOLDER = Path(sys.argv[1])
STEPS, EVERY, LIMIT = 9, 2, 2


def checkpoints():
    return sorted(FOLDER.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def run(*, resume):
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        project_config=ProjectConfiguration(project_dir=str(FOLDER), logging_dir=str(FOLDER / "logs")),
    )
    set_seed(3)
    model = tiny.make_unet()
    average = EMAModel(
        model.parameters(), decay=0.9, use_ema_warmup=True, model_cls=UNet2DModel, model_config=model.config
    )

    def save_hook(models, weights, folder):
        if accelerator.is_main_process:
            average.save_pretrained(str(Path(folder, "unet_ema")))
            for each in models:
                each.save_pretrained(str(Path(folder, "unet")))
                weights.pop()

    def load_hook(models, folder):
        loaded = EMAModel.from_pretrained(str(Path(folder, "unet_ema")), UNet2DModel)
        average.load_state_dict(loaded.state_dict())
        for _ in range(len(models)):
            each = models.pop()
            each.load_state_dict(UNet2DModel.from_pretrained(folder, subfolder="unet").state_dict())

    accelerator.register_save_state_pre_hook(save_hook)
    accelerator.register_load_state_pre_hook(load_hook)
    noises = DDPMScheduler(num_train_timesteps=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    images = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    loader = torch.utils.data.DataLoader(images, batch_size=4, shuffle=True)
    schedule = get_scheduler(
        "cosine",
        optimizer,
        num_warmup_steps=2 * accelerator.num_processes,
        num_training_steps=STEPS * accelerator.num_processes,
    )
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if accelerator.is_main_process:
        accelerator.init_trackers("train")
    step, losses, rates = 0, [], []
    per_epoch = -(-len(loader) // accelerator.gradient_accumulation_steps)
    if resume:
        newest = checkpoints()[-1]
        accelerator.load_state(str(newest))
        step = int(newest.name.split("-")[1])
    epoch, done = divmod(step, per_epoch)
    while step < STEPS:
        loader.set_epoch(epoch)
        batches = accelerator.skip_first_batches(loader, 2 * done) if done else loader
        done, epoch = 0, epoch + 1
        model.train()
        for clean in batches:
            # Its own generator: without their saved states, other ranks than the first continue differently.
            generator = torch.Generator().manual_seed(1000 * step + accelerator.process_index)
            noise = torch.randn(clean.shape, generator=generator)
            times = torch.randint(10, (len(clean),), generator=generator)
            with accelerator.accumulate(model):
                predicted = model(noises.add_noise(clean, noise, times), times).sample
                weights = compute_snr(noises, times).clamp(max=5) / compute_snr(noises, times)
                loss = (weights * (predicted - noise).square().mean(dim=(1, 2, 3))).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach().repeat(len(clean))).mean().item())
            if accelerator.sync_gradients:
                average.step(model.parameters())
                step += 1
                rates.append(schedule.get_last_lr()[0])
                if accelerator.is_main_process and step % EVERY == 0:
                    for old in checkpoints()[: max(0, len(checkpoints()) - LIMIT + 1)]:
                        shutil.rmtree(old)
                    accelerator.save_state(str(FOLDER / f"checkpoint-{step}"))
                accelerator.log({"loss": losses[-1]}, step=step)
                if step == STEPS:
                    break
        accelerator.wait_for_everyone()
    samples = []
    if accelerator.is_main_process:
        unet = accelerator.unwrap_model(model)
        average.store(unet.parameters())
        average.copy_to(unet.parameters())
        pipeline = DDPMPipeline(unet=unet, scheduler=noises)
        pipeline.set_progress_bar_config(disable=True)
        pipeline.save_pretrained(FOLDER / "pipeline")
        again = DDPMPipeline.from_pretrained(FOLDER / "pipeline")
        again.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(0)
        samples = again(generator=generator, num_inference_steps=3, output_type="np").images.ravel().tolist()
        average.restore(unet.parameters())
    for tracker in accelerator.trackers:
        tracker.finish()
    return {"losses": losses, "rates": rates, "samples": samples}


found = run(resume=False)
found["kept"] = [float(path.name.split("-")[1]) for path in checkpoints()]
found |= {f"{name}, resumed": values for name, values in run(resume=True).items()}
tiny.report(found)
