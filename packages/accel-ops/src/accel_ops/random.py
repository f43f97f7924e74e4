"""Random number generators: seed them, capture and restore them, synchronize them over the ranks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from accel_ops.collectives import broadcast
from accel_ops.transport import current_rank, current_transport
from accel_state.devices import device_backend_of, require_device_backend
from accel_state.enums import RNGType
from accel_state.environment import export, read, variable
from accel_state.errors import CheckpointError, ConfigError, StateError
from accel_state.runtime import current_runtime, has_runtime
from accel_state.user_warnings import warn_user

#: Errors of generators, and of the functions above them, for an invalid state.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_Access = tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], object]]


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's ``random``, NumPy and torch on the CPU and on every accelerator.

    Args:
        seed: Between 0 and 2**32 - 1 (NumPy's range).
        device_specific: Add the rank, so that the ranks draw different numbers. TP, CP and SP ranks, which
            work on the same samples, add their data-parallel rank instead. Before the state is built, the rank comes
            from the process group or, without one, from the environment, and so do the sizes of the mesh.
        deterministic: Restrict torch to deterministic algorithms; an operation without one then raises. Sets
            `CUBLAS_WORKSPACE_CONFIG` unless it is set, which CUDA reads at its first matrix product.

    Raises:
        ConfigError: If the seed is not such a number. No generator has been seeded then.
    """
    if not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"`seed` must be an int, got {seed!r} of type `{type(seed).__name__}`.")
    seed = int(seed)
    if device_specific:
        seed += _seed_index(current_rank())
    if not 0 <= seed < 2**32:
        raise ConfigError(f"`seed` must lie between 0 and {2**32 - 1}, got {seed}.")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if has_runtime():
        # Devices that `torch.manual_seed` does not seed, such as XLA's.
        current_runtime().device_backend.seed_all(seed)
    if deterministic:
        if variable("CUBLAS_WORKSPACE_CONFIG") is None:
            export({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})  # deterministic torch refuses cuBLAS without it
        torch.use_deterministic_algorithms(True)


def _seed_index(rank: int) -> int:
    if has_runtime():
        return current_runtime().layout.seed_index(rank)
    if not read("use_parallelism_config"):
        return rank
    from accel_state.parallelism_config import ParallelismConfig

    layout = ParallelismConfig().layout
    return rank if layout.world_size == 1 else layout.seed_index(rank)


def capture_rng_states() -> dict[str, dict[str, Any]]:
    """Return the state of Python's, NumPy's, torch's CPU and this process's device generators.

    The result holds tensors, numbers, strings and ``None`` only, so it can be written without pickling code
    (``torch.load(weights_only=True)`` reads it). The device is the runtime's; without a runtime only
    the CPU is captured.
    """
    states = {
        "python": _capture_python(),
        "numpy": _capture_numpy(),
        "torch": {"state": torch.get_rng_state()},
    }
    device = _device()
    if device is not None:
        states[device.type] = {"state": device_backend_of(device).get_rng_state().cpu()}
    return states


def restore_rng_states(states: Mapping[str, Mapping[str, Any]], *, strict: bool = True) -> None:
    """Set every generator to its captured state; nothing is changed if an error is raised.

    A device of another type than at capture is seeded with the first four bytes (little-endian) of
    the SHA-256 of the state of torch's CPU generator, and a warning names both.

    Args:
        states: Captured states.
        strict: The generators of Python, NumPy and torch's CPU must have a state. Otherwise the others are
            restored.

    Raises:
        CheckpointError: If a state is missing, or is not a state of its generator.
    """
    device = _device()
    present = ["python", "numpy", "torch", *([device.type] if device is not None else [])]
    missing = [name for name in present[:3] if name not in states]
    if strict and missing:
        raise CheckpointError(
            f"The random state of `{', '.join(missing)}` is missing, so the numbers drawn from here on would "
            f"differ. There is: {', '.join(states)}. Capture all of them, or pass `strict=False`."
        )
    before = capture_rng_states()
    for name in present:
        if name not in states:
            continue
        try:
            _restore_generator(name, states[name], device)
        except _DAMAGE as error:
            for changed in present[: present.index(name) + 1]:
                _restore_generator(changed, before[changed], device)
            raise CheckpointError(
                f"The random state of `{name}` cannot be restored: {error}. It is damaged, or was captured with "
                "another release of its library. Leave it out and pass `strict=False` to resume without it."
            ) from error
    before_on = next((name for name in states if name not in present[:3]), "cpu")
    here = "cpu" if device is None else device.type
    if device is not None and here not in states and "torch" in states:
        digest = hashlib.sha256(states["torch"]["state"].numpy().tobytes()).digest()
        device_backend_of(device).seed_all(int.from_bytes(digest[:4], "little"))
    if here not in (*states, before_on):
        warn_user(
            f"The random states were captured on `{before_on}` and are restored on `{here}`, where other numbers are "
            "drawn from now on. The generators of Python, NumPy and torch on the CPU continue exactly."
        )


def _restore_generator(name: str, state: Mapping[str, Any], device: torch.device | None) -> None:
    if name == "python":
        random.setstate((state["version"], tuple(state["state"].tolist()), state["gauss_next"]))
    elif name == "numpy":
        _restore_numpy(state)
    elif name == "torch":
        torch.set_rng_state(state["state"])
    else:
        assert device is not None
        device_backend_of(device).set_rng_state(state["state"])


def _device() -> torch.device | None:
    """Return this process's device if it has generators other than the CPU's."""
    device = current_runtime().device if has_runtime() else torch.device("cpu")
    return device if device.type != "cpu" else None


def _capture_python() -> dict[str, Any]:
    version, state, gauss_next = random.getstate()
    return {
        "version": version,
        "state": torch.tensor(state, dtype=torch.int64, device="cpu"),
        "gauss_next": gauss_next,
    }


def _capture_numpy() -> dict[str, Any]:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    if state["bit_generator"] != "MT19937":
        raise StateError(
            f"NumPy's global generator is a `{state['bit_generator']}`; only NumPy's default, `MT19937`, can be "
            "captured. Use a separate `numpy.random.Generator` instead."
        )
    return {
        "key": torch.from_numpy(state["state"]["key"].astype(np.int64)),
        "pos": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _restore_numpy(state: Mapping[str, Any]) -> None:
    key = state["key"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, state["pos"], state["has_gauss"], state["gauss"]))


def synchronize_rng_state(
    rng_type: RNGType | str | None = None, generator: torch.Generator | None = None
) -> None:
    """Set a random number generator of every rank to its state on rank 0.

    Every rank must call it; it blocks until all have.

    Args:
        rng_type: ``torch`` (the CPU's), a kind of device (the current device of that kind), or
            ``generator``. By default ``generator`` if one is given, else ``torch``.
        generator: The generator to set, for ``generator``.

    Raises:
        ConfigError: If the type is unknown, or is ``generator`` without one.
        NotAvailableError: If there is no such device here.
    """
    synchronize_rng_states(
        [rng_type or (RNGType.GENERATOR if generator is not None else RNGType.TORCH)], generator
    )


def synchronize_rng_states(
    rng_types: Sequence[str | RNGType], generator: torch.Generator | None = None
) -> None:
    """Set several generators of every rank to their states on rank 0, in one broadcast.

    Every rank must call it; it blocks until all have. See :func:`synchronize_rng_state`.
    """
    accesses = [_access(rng_type, generator) for rng_type in rng_types]
    if current_transport().world_size == 1 or not accesses:
        return
    states = broadcast([read() for read, _ in accesses])
    if current_transport().rank == 0:
        return
    for (_, write), state in zip(accesses, states, strict=True):
        write(state.clone())  # broadcast results are views of one buffer


def _access(name: RNGType | str, generator: torch.Generator | None) -> _Access:
    """Return the functions that read and write the state of a generator."""
    try:
        rng_type = RNGType(name)
    except ValueError as error:
        names = ", ".join(kind.value for kind in RNGType)
        raise ConfigError(f"`rng_type` must be one of {names}, got `{name}`.") from error
    if rng_type is RNGType.TORCH:
        return torch.get_rng_state, torch.set_rng_state
    if rng_type is RNGType.GENERATOR:
        if generator is None:
            raise ConfigError(
                "`generator` is needed to synchronize the random state of a generator, got None. Pass the generator."
            )
        return generator.get_state, generator.set_state
    backend = require_device_backend(rng_type.value)
    return backend.get_rng_state, backend.set_rng_state
