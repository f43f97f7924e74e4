"""A CPU that answers where megatron-core requests a CUDA device, so that its schedules and optimizers run on gloo.

megatron-core names the device `"cuda"` in its code, reads the current one, and compares names of tensor types. Here
these are the CPU's; everything else, arithmetic and communication, is the real thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

_FLOATS = {torch.float32: "FloatTensor", torch.bfloat16: "BFloat16Tensor", torch.float16: "HalfTensor"}


class CpuForCuda(TorchFunctionMode):
    """Makes tensors on the CPU where they are requested on a CUDA device."""

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


@contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """Take the CPU for a CUDA device in this block."""
    random = {
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    }
    answers = {
        **random,
        "is_available": lambda: True,
        "current_device": lambda: torch.device("cpu"),
        "default_generators": {torch.device("cpu"): torch.default_generator},
        "manual_seed": torch.default_generator.manual_seed,
        "_lazy_call": lambda call, **kwargs: call(),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "Stream": Stream,
        "default_stream": Stream,
        "current_stream": Stream,
        "stream": nullcontext,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.dict("os.environ"))  # megatron-core writes what Transformer Engine reads
        stack.enter_context(patch.multiple(torch.cuda, **answers))
        stack.enter_context(patch.multiple(torch.cuda.random, **random))
        stack.enter_context(CpuForCuda())
        yield
