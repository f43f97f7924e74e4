"""Small functions and constants that libraries import next to the `Accelerator`."""

from __future__ import annotations

import argparse
import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import accel_state  # its classes only when they are used: they import torch
from accel_state.environment.settings import SECTIONS, SETTINGS, Setting
from accel_state.errors import NotAvailableError, StateError

if TYPE_CHECKING:
    from tqdm.auto import tqdm as Bar

T = TypeVar("T")

CUDA_DISTRIBUTED_TYPES = ["DEEPSPEED", "MULTI_GPU", "FSDP", "MEGATRON_LM", "TP"]
"""Names of `DistributedType` that CUDA devices may have."""
TORCH_DISTRIBUTED_OPERATION_TYPES = [
    *CUDA_DISTRIBUTED_TYPES,
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "MULTI_CPU",
    "MULTI_HPU",
    "MULTI_NEURON",
]
"""Names of `DistributedType` whose processes communicate through torch.distributed."""
# The first version of a package with a feature. Libraries compare installed versions with these.
BETA_CP_AVAILABLE_PYTORCH_VERSION = "2.6.0"
BETA_SP_AVAILABLE_DEEPSPEED_VERSION = "0.18.2"
BETA_TP_AVAILABLE_PYTORCH_VERSION = "2.3.0"
BETA_TP_AVAILABLE_TRANSFORMERS_VERSION = "4.52.0"
DTENSOR_PYTORCH_VERSION = "2.5.0"
MITA_PROFILING_AVAILABLE_PYTORCH_VERSION = "2.1.0"
XPU_PROFILING_AVAILABLE_PYTORCH_VERSION = "2.4.0"
PROFILE_PATTERN_NAME = "profile_{suffix}.json"
"""File of the Chrome trace of a rank."""
USE_TORCH_XLA = True
"""Whether `torch_xla` is used where it is installed."""


def wait_for_everyone() -> None:
    """Block until every rank has called it. Every rank must call it."""
    accel_state.PartialState().wait_for_everyone()


def get_pretty_name(obj: object) -> str:
    """Return the qualified name of a class or function, of the class for any other object."""
    if not hasattr(obj, "__qualname__") and not hasattr(obj, "__name__"):
        obj = type(obj)
    return str(getattr(obj, "__qualname__", None) or getattr(obj, "__name__", obj))


def merge_dicts(source: Mapping[Any, Any], destination: MutableMapping[Any, Any]) -> MutableMapping[Any, Any]:
    """Merge `source` into `destination`, nested dicts too, and return `destination`."""
    for key, value in source.items():
        if isinstance(value, Mapping):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def prepare_extend_env_parallelism_config(
    args: argparse.Namespace, current_env: MutableMapping[str, str]
) -> MutableMapping[str, str]:
    """Add the variables of the launcher's arguments for combined parallelism to an environment, and return it.

    Args:
        args: With `parallelism_config_tp_size` and so on; those missing or None are left out.
        current_env: Extended in place.
    """
    current_env[SETTINGS["use_parallelism_config"].variable] = "true"
    chosen = [one for one in SECTIONS["Combined parallelism"] if one.name.startswith("parallelism_")]
    return _extended(current_env, args, chosen)


def setup_fp8_env(
    args: argparse.Namespace, current_env: MutableMapping[str, str]
) -> MutableMapping[str, str]:
    """Add the variables of the launcher's arguments for FP8 to an environment, and return it.

    Args:
        args: With `fp8_backend` and so on; those missing or None are left out.
        current_env: Extended in place.
    """
    overrides = getattr(args, "fp8_override_linear_precision", None)
    if overrides is not None:
        names = ("fp8_override_fprop", "fp8_override_dgrad", "fp8_override_wgrad")
        for name, value in zip(names, overrides, strict=True):
            current_env[SETTINGS[name].variable] = SETTINGS[name].text_of(value)
    return _extended(current_env, args, SECTIONS["FP8"])


def _extended(
    environ: MutableMapping[str, str], args: argparse.Namespace, settings: Iterable[Setting]
) -> MutableMapping[str, str]:
    for setting in settings:
        value = getattr(args, (setting.flag or "").lstrip("-"), None)
        if value is not None:
            environ[setting.variable] = setting.text_of(value)
    return environ


def is_port_in_use(port: int | None = None) -> bool:
    """Whether a process listens on a port of this machine; 29500 if omitted."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        return client.connect_ex(("localhost", 29500 if port is None else port)) == 0


def install_xla(upgrade: bool = False) -> None:
    """Install `torch_xla` for the installed torch, in a notebook of Google Colab.

    Args:
        upgrade: Install it even if there is one.

    Raises:
        StateError: Outside of Colab.
        subprocess.CalledProcessError: If pip fails.
    """
    if "google.colab" not in sys.modules:
        raise StateError(
            "`install_xla` works in Google Colab only. Elsewhere install `torch_xla[tpu]` of the release of your torch "
            "by pip."
        )
    if upgrade or importlib.util.find_spec("torch_xla") is None:
        release = version("torch").partition("+")[0]
        subprocess.run([sys.executable, "-m", "pip", "install", f"torch_xla[tpu]=={release}"], check=True)


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Accept any arguments and do nothing."""


def patch_optimizer_step(accelerated_optimizer: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of `method` that also sets `accelerated_optimizer._accelerate_step_called`."""

    def patched_step(*args: Any, **kwargs: Any) -> Any:
        accelerated_optimizer._accelerate_step_called = True
        return method(*args, **kwargs)

    return patched_step


class ThreadLocalSharedDict:
    """A class attribute: one dict for all objects of the class, or one in each thread.

    Args:
        thread_local: Whether each thread has a separate dict, for TPU cores that are threads.
    """

    def __init__(self, thread_local: bool = False) -> None:
        self._storage: Any = threading.local() if thread_local else SimpleNamespace()

    def __get__(self, obj: object, objtype: type | None = None) -> dict[Any, Any]:
        content: dict[Any, Any] = self._storage.__dict__.setdefault("content", {})
        return content

    def __set__(self, obj: object, value: dict[Any, Any]) -> None:
        self._storage.content = value


@overload
def tqdm(iterable: Iterable[T], /, *args: Any, main_process_only: bool = True, **kwargs: Any) -> Bar[T]: ...
@overload
def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Bar[Any]: ...
def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Return `tqdm.auto.tqdm`, shown on each machine's main process only.

    Args:
        *args: Arguments of `tqdm`: the iterable, or none with `total`.
        main_process_only: Turn off to show a bar in every process.
        **kwargs: Keyword arguments of `tqdm`.

    Raises:
        NotAvailableError: If the package `tqdm` is not installed.
    """
    try:
        from tqdm.auto import tqdm as bar
    except ImportError as missing:
        raise NotAvailableError(
            "Progress bars need the package `tqdm`, which is not installed. Run `pip install tqdm`."
        ) from missing
    if main_process_only:
        kwargs["disable"] = (
            bool(kwargs.get("disable", False)) or not accel_state.PartialState().is_local_main_process
        )
    return bar(*args, **kwargs)
