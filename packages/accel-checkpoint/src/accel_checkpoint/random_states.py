"""The random state file of a rank, in the format of Accelerate."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import torch

from accel_checkpoint.file_names import OWN_MARK, RANDOM_STATES
from accel_ops import capture_rng_states, restore_rng_states, set_seed
from accel_state import current_runtime
from accel_state.errors import CheckpointError

FORMAT = 1
_DEVICE_KEY = re.compile(r"torch_(\w+)_manual_seed")
_ACCUMULATION = "accumulation"
States = Mapping[str, Mapping[str, Any]]


def captured(*, rank: int) -> tuple[str, dict[str, Any]]:
    """Return the name and content of the random state file for the current state of this rank's generators."""
    index = current_runtime().device.index or 0
    return RANDOM_STATES.name(rank), to_file(
        capture_rng_states(), accumulation={"step": 0}, device_index=index
    )


def restore(content: Any, *, file_name: str) -> None:
    """Restore this rank's generators from the content of a random state file.

    Raises:
        CheckpointError: If it is not the content of a random state file.
    """
    states, _ = from_file(content, device_index=current_runtime().device.index or 0, file_name=file_name)
    restore_rng_states(states)


def to_file(states: States, *, accumulation: Mapping[str, Any], device_index: int) -> dict[str, Any]:
    """Return the content of a random state file: tensors, numbers and strings.

    Args:
        states: Result of `capture_rng_states`.
        accumulation: State of the accumulation, from `Stepper.state_dict`; Accelerate reads only its ``step``.
        device_index: Index of this rank's device on its machine.
    """
    python, numpy = states["python"], states["numpy"]
    content: dict[str, Any] = {
        OWN_MARK: FORMAT,
        "step": accumulation["step"],
        _ACCUMULATION: dict(accumulation),
        "random_state": (python["version"], tuple(python["state"].tolist()), python["gauss_next"]),
        "numpy_random_seed": (
            "MT19937",
            numpy["key"].tolist(),
            numpy["pos"],
            numpy["has_gauss"],
            numpy["gauss"],
        ),
        "torch_manual_seed": states["torch"]["state"],
    }
    for kind, state in states.items():
        if kind not in ("python", "numpy", "torch"):
            # One entry per device up to this rank's: Accelerate restores the devices in order.
            content[f"torch_{kind}_manual_seed"] = [state["state"]] * (device_index + 1)
    return content


def from_file(
    content: Any, *, device_index: int, file_name: str
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the states for `restore_rng_states`, and the state of the accumulation; Accelerate saves only ``step``.

    Raises:
        CheckpointError: If it is not the content of a random state file.
    """
    try:
        version, words, gauss_next = content["random_state"]
        _, key, pos, has_gauss, gauss = content["numpy_random_seed"]
        states: dict[str, dict[str, Any]] = {
            "python": {
                "version": int(version),
                "state": torch.tensor(words, dtype=torch.int64, device="cpu"),
                "gauss_next": gauss_next,
            },
            "numpy": {
                "key": torch.tensor([int(word) for word in key], dtype=torch.int64, device="cpu"),
                "pos": int(pos),
                "has_gauss": int(has_gauss),
                "gauss": float(gauss),
            },
            "torch": {"state": content["torch_manual_seed"]},
        }
        for name, value in content.items():
            device = _DEVICE_KEY.fullmatch(name)
            if device is not None:
                states[device[1]] = {"state": value[min(device_index, len(value) - 1)]}
        accumulation = {**dict(content.get(_ACCUMULATION, {})), "step": int(content.get("step", 0))}
        if not all(value is None or isinstance(value, (int, float)) for value in accumulation.values()):
            raise TypeError(f"not all numbers: {accumulation}")
        return states, accumulation
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(
            f"`{file_name}` does not have random states as expected: {error!r}. Copy the checkpoint again."
        ) from error


def reseed_for(states: States, *, rank: int, world_size: int) -> int:
    """Seed all generators of this rank from saved states, and return the seed.

    The seed depends on the saved states, the rank and the number of ranks only; it differs between ranks.
    """
    digest = hashlib.sha256(states["torch"]["state"].numpy().tobytes())
    digest.update(f"{rank}/{world_size}".encode())
    seed = int.from_bytes(digest.digest()[:4], "little")
    set_seed(seed)
    return seed
