"""Rows for trainers of images, and what stands for torchvision and others, which they import for images in files."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

import tiny  # noqa: F401 - imports transformers, which must not take the stand-ins for torchvision
import torch


class Unused(ModuleType):
    """A module with every name, and every module below it."""

    __path__ = ()

    def __init__(self, name):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


def stand_in(*names):
    for name in names:
        sys.modules[name] = Unused(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])


stand_in(
    "torchvision", "torchvision.transforms", "torchvision.utils", "pytorch_fid", "pytorch_fid.fid_score",
    "pytorch_fid.inception", "kornia", "kornia.augmentation",
)  # fmt: skip


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
