"""A pipeline of diffusers whose models, or their parts, come to the device when they are needed."""

import tiny
import torch
from diffusers import DiffusionPipeline


class TwoModels(DiffusionPipeline):
    """Two models, one after the other."""

    model_cpu_offload_seq = "unet->refiner"

    def __init__(self, unet, refiner):
        super().__init__()
        self.register_modules(unet=unet, refiner=refiner)

    @torch.no_grad()
    def __call__(self, images):
        for module in (self.unet, self.refiner):
            images = module(images.to(self._execution_device), 1).sample
        self.maybe_free_model_hooks()
        return images


torch.manual_seed(0)
pipeline = TwoModels(tiny.make_unet().eval(), tiny.make_unet().eval())
images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
found = {"whole": pipeline(images).flatten().tolist()}
for name in ("enable_model_cpu_offload", "enable_sequential_cpu_offload"):
    getattr(pipeline, name)(device="cpu")
    found[name] = [value for _ in range(2) for value in pipeline(images).flatten().tolist()]
tiny.report(found)
