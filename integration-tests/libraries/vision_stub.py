"""Stands for torchvision and others that trainers import for images in files, which no script here has."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock


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
