"""Lets a sharded model run under `torch.inference_mode` before it has run without."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


def allow_inference_first(model: nn.Module) -> None:
    """Let the first forward of ``model`` be under `torch.inference_mode` and later ones be trained.

    torch makes the tensors that gathered parameters lie in when they are first gathered. Made under inference mode
    they could never be written to outside of it ("Inplace update to inference tensor", seen with torch 2.13). So
    they are made before, at the cost of gathering each unit once more.
    """

    def gather_once(module: nn.Module, args: Any) -> None:
        handle.remove()
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(mode=False):
                for submodule in module.modules():
                    if isinstance(submodule, FSDPModule):
                        submodule.unshard()
                        submodule.reshard()

    handle = model.register_forward_pre_hook(gather_once, prepend=True)
