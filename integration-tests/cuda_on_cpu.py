"""A CPU that answers where megatron-core asks for a CUDA device, so that its schedules and optimizers run on gloo.

megatron-core names the device `"cuda"` in its code, reads the current one, and compares names of tensor types. Here
these are the CPU's; everything else, arithmetic and communication, is the real thing.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_FLOATS = {torch.float32: "FloatTensor", torch.bfloat16: "BFloat16Tensor", torch.float16: "HalfTensor"}


class CpuForCuda(TorchFunctionMode):
    """Makes tensors on the CPU where they are asked for on a CUDA device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs and args[0].dtype in _FLOATS:
            return f"torch.cuda.{_FLOATS[args[0].dtype]}"
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class Stream:
    """A stream, on which nothing waits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what a stream takes."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""


def install() -> CpuForCuda:
    """Let this process take its CPU for a CUDA device, until it ends; the mode is entered where models compute."""
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.current_device = lambda: torch.device("cpu")
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda device=None: torch.get_rng_state()
        module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)
    cuda._lazy_call = lambda call, **kwargs: call()
    cuda.default_generators = {torch.device("cpu"): torch.default_generator}
    cuda.synchronize = lambda *device: None
    cuda.empty_cache = lambda: None
    cuda.Stream = Stream
    cuda.default_stream = cuda.current_stream = lambda *device: Stream()
    cuda.stream = lambda stream: nullcontext()
    return CpuForCuda()
