"""The training loop of diffusers' examples: a noise predictor, moving averages, a checkpoint with hooks."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader

accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=2, project_config=ProjectConfiguration(project_dir=sys.argv[1])
)
set_seed(0)
model = UNet2DModel(
    sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8,), norm_num_groups=4,
    down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
)  # fmt: skip
average = EMAModel(model.parameters(), model_cls=UNet2DModel, model_config=model.config)


def save_hook(models, weights, folder):
    if accelerator.is_main_process:
        average.save_pretrained(str(Path(folder, "unet_ema")))
        for each in models:
            accelerator.unwrap_model(each).save_pretrained(str(Path(folder, "unet")))
            weights.pop()


accelerator.register_save_state_pre_hook(save_hook)
noise_scheduler = DDPMScheduler(num_train_timesteps=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)), batch_size=4)
schedule = get_scheduler("cosine", optimizer, num_warmup_steps=1, num_training_steps=16)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
losses = []
for _ in range(8):
    for images in loader:
        generator = torch.Generator().manual_seed(len(losses))
        noise = torch.randn(images.shape, generator=generator)
        steps = torch.randint(10, (len(images),), generator=generator)
        with accelerator.accumulate(model):
            predicted = model(noise_scheduler.add_noise(images, noise, steps), steps, return_dict=False)[0]
            loss = torch.nn.functional.mse_loss(predicted, noise)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            average.step(model.parameters())
        losses.append(accelerator.gather(loss.detach()).mean().item())
accelerator.save_state(f"{sys.argv[1]}/state")
if accelerator.is_main_process:
    print("LOSSES", json.dumps(losses))
    assert Path(sys.argv[1], "state", "unet_ema", "config.json").is_file()
    UNet2DModel.from_pretrained(f"{sys.argv[1]}/state/unet")
accelerator.end_training()
