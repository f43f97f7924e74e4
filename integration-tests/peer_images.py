"""Small local stand-ins for what scripts that train on images take from the network or from large packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import nn

BREEDS = ("beagle", "pug", "siamese")
NUM_IMAGES = 30


def write_images(folder: Path) -> None:
    """Write pictures of pets, named by their breed."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for place in range(NUM_IMAGES):
        pixels = draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{BREEDS[place % len(BREEDS)]}_{place}.jpg")


class Classifier(nn.Module):
    """Stands in for a ResNet of timm."""

    default_cfg: ClassVar = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 7, stride=8), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.fc

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images."""
        return self.fc(self.body(images).mean((2, 3)))


class Compose:
    """Stands in for torchvision's class of this name, as do the classes below."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize:
    """Scales an image."""

    def __init__(self, size: tuple[int, int], **_: object) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.resize(self.size)


class RandomResizedCrop(Resize):
    """Scales an image, and draws the part of it from torch's generator."""

    def __call__(self, image: Image.Image) -> Image.Image:
        left, top = (int(place) for place in torch.randint(0, 6, (2,)))
        return image.crop((left, top, left + 14, top + 14)).resize(self.size)


class ToTensor:
    """Turns an image into a tensor of ``(channels, height, width)``."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255


def install() -> None:
    """Put the stand-ins where scripts import the packages from."""
    timm, torchvision = module("timm"), module("torchvision")
    timm.create_model = lambda *_, num_classes, **__: Classifier(num_classes)
    torchvision.transforms = module("torchvision.transforms")
    for kind in (Compose, RandomResizedCrop, Resize, ToTensor):
        setattr(torchvision.transforms, kind.__name__, kind)


def module(name: str) -> ModuleType:
    """Return an empty module that can be imported, and looked for."""
    made = sys.modules[name] = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    return made
