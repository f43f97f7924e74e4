"""The files of an engine, read as whole tensors on any number of ranks, without DeepSpeed and without running code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from accel_backends.strategies.deepspeed.checkpoints.counters import counters_in
from accel_backends.strategies.deepspeed.checkpoints.states import SavedTensor
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_state.errors import CheckpointError

_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_FP32 = "fp32"
"""The name for the values of a parameter itself, beside those of the states of an optimizer."""


class SavedObject:
    """Stands for an object of DeepSpeed in a file: it has its attributes, and none of its code."""


def _stage(kind: object, name: str) -> int:
    """Stand for `getattr`, by which Python 3.11.0 to 3.11.3 saves a member of `ZeroStageEnum`."""
    return ("disabled", "optimizer_states", "gradients", "weights").index(name)


_KNOWN: list[tuple[Callable[..., Any], str]] = [
    (_stage, "builtins.getattr"),
    (SavedObject, "deepspeed.utils.tensor_fragment.fragment_address"),
    (SavedObject, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (SavedObject, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (int, "deepspeed.runtime.zero.config.ZeroStageEnum"),
]
"""The classes of DeepSpeed that its files may name, and what is taken for them."""


class SavedEngine:
    """One engine in a checkpoint; tensors are mapped and read when they are needed.

    Args:
        files: The files of the checkpoint.
        name: The folder of the engine in it.

    Raises:
        CheckpointError: If a file is missing or damaged, holds more than plain data, or is of a kind not known here.
    """

    def __init__(self, files: SavedFiles, name: str) -> None:
        self._saved_files, self._name = files, name
        models, optimizers = self._files(_MODEL), self._files(_OPTIMIZER)
        if not models:
            raise self._error("it has no file of a model")
        self.model = self._read(models[0])
        self._partitions = [self._read(file)["optimizer_state_dict"] for file in optimizers]
        self._models = [self.model]
        self.stage = int(self._partitions[0].get("zero_stage", 1)) if self._partitions else 0
        self._models += [self._read(file) for file in models[1:]]
        self._check_ranks()

    def weights(self) -> dict[str, Any]:
        """Return the weights by name: the fp32 values where the optimizer had them."""
        module: Mapping[str, Any] = self.model["module"]
        first_names: Mapping[str, str] = self.model.get("shared_params") or {}
        frozen: Mapping[str, Sequence[int]] = self.model.get("frozen_param_shapes") or {}
        found: dict[str, Any] = {}
        for name in [*module, *(name for name in frozen if name not in module)]:
            first = first_names.get(name, name)
            if first in self._values:
                found[name] = self._values[first][_FP32]
            elif first in frozen and self.stage == 3:
                found[name] = self._frozen(first, frozen[first])
            else:
                found[name] = module[name]
        tied: dict[str, Any] = {}
        return {name: tied.setdefault(first_names.get(name, name), value) for name, value in found.items()}

    def counters(self) -> dict[str, Any]:
        """Return how far the engine had come."""
        return counters_in(self.model, self._partitions[0] if self._partitions else {})

    @property
    def has_optimizer(self) -> bool:
        """Whether it has the state of an optimizer."""
        return bool(self._partitions) or self.model.get("optimizer") is not None

    def plain_optimizer_state(self) -> Mapping[str, Any] | None:
        """Return the state of the optimizer as it is if there was no ZeRO; parameters have numbers in it."""
        return None if self._partitions else self.model.get("optimizer")

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return the settings of the parameter groups, with the names of their parameters."""
        content = self._base_state(0)
        names: list[list[str]] = [[] for _ in content["param_groups"]]
        for number, shapes in enumerate(self._shapes):
            names[self._group_of(number, content)] += shapes
        return [
            {**group, "params": of_group}
            for group, of_group in zip(content["param_groups"], names, strict=True)
        ]

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Return the state of each parameter by its name."""
        states: dict[str, dict[str, Any]] = {}
        for number, shapes in enumerate(self._shapes):
            by_value = {kind for kind, _ in self._flat_tensors(0, number)}
            shared = {
                kind: value for kind, value in self._state_of(0, number).items() if kind not in by_value
            }
            for name in shapes:
                own = {kind: value for kind, value in self._values.get(name, {}).items() if kind != _FP32}
                if shared or own:
                    states[name] = shared | own
        return states

    @cached_property
    def _shapes(self) -> list[dict[str, Sequence[int]]]:
        """The shapes of the parameters in each flat tensor, by their names."""
        return [dict(shapes) for shapes in self.model["param_shapes"]]

    @cached_property
    def _values(self) -> dict[str, dict[str, SavedTensor]]:
        """The values of each parameter, and of its states, by its name and their kind."""
        if not self._partitions:
            return {}
        fragments: dict[str, dict[str, list[torch.Tensor]]] = {}
        for rank in range(len(self._partitions)):
            for number, name, start, numel in self._places(rank):
                for kind, flat in self._flat_tensors(rank, number):
                    values = flat.narrow(0, start, numel)
                    fragments.setdefault(name, {}).setdefault(kind, []).append(values)
        shapes = {name: shape for group in self._shapes for name, shape in group.items()}
        found: dict[str, dict[str, SavedTensor]] = {}
        for name, shape in shapes.items():
            for kind, parts in fragments.get(name, {}).items():
                if sum(part.numel() for part in parts) != math.prod(shape):
                    raise self._error(
                        f"the parts of `{name}` ({kind}) do not make up its shape {tuple(shape)}"
                    )
                found.setdefault(name, {})[kind] = SavedTensor.of(shape, parts)
            if name not in found and math.prod(shape) > 0:
                raise self._error(f"it has no values of `{name}`")
        return found

    def _places(self, rank: int) -> Iterator[tuple[int, str, int, int]]:
        """Yield where the values of parameters lie on a rank: flat tensor, name, first value and their number."""
        partition = self._partitions[rank]
        if self.stage < 3:
            for number, places in enumerate(partition["param_slice_mappings"]):
                for name, place in places.items():
                    yield number, name, place.start, place.numel
            return
        for number, shapes in enumerate(self._shapes):
            start = 0
            for name, shape in shapes.items():
                size = -(-math.prod(shape) // len(self._partitions))
                numel = max(0, min(size, math.prod(shape) - rank * size))
                if numel:
                    yield number, name, start, numel
                start += size

    def _flat_tensors(self, rank: int, number: int) -> Iterator[tuple[str, torch.Tensor]]:
        partition = self._partitions[rank]
        flat = partition["fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"][number]
        yield _FP32, flat
        for kind, value in self._state_of(rank, number).items():
            if isinstance(value, torch.Tensor) and value.dim() == 1 and value.numel() >= flat.numel():
                yield kind, value  # without ZeRO-3 it is filled up, which `flat` is not

    def _base_state(self, rank: int) -> Mapping[str, Any]:
        """Return what a rank saved of the optimizer that steps the flat tensors."""
        key = "optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"
        content: Any = self._partitions[rank][key]
        if not isinstance(content, Mapping):
            raise self._error("it was saved with `elastic_checkpoint`, which is not read. Save without it")
        return content

    def _state_of(self, rank: int, number: int) -> Mapping[str, Any]:
        """Return what a rank saved of the state of a flat tensor."""
        state: Mapping[str, Any] = self._base_state(rank)["state"].get(number, {})
        return state

    def _group_of(self, number: int, content: Mapping[str, Any]) -> int:
        """Return the parameter group of a flat tensor."""
        return next(index for index, group in enumerate(content["param_groups"]) if number in group["params"])

    def _frozen(self, name: str, shape: Sequence[int]) -> Any:
        parts = [one["frozen_param_fragments"][name].reshape(-1) for one in self._models]
        left, fragments = math.prod(shape), []
        for part in parts:
            fragments.append(part[: min(left, part.numel())])
            left -= fragments[-1].numel()
        return SavedTensor.of(shape, fragments)

    def _check_ranks(self) -> None:
        for partition in self._partitions[:1]:
            count = partition["partition_count"]
            expected = max(count) if isinstance(count, (list, tuple)) else int(count)
            if expected != len(self._partitions):
                raise self._error(
                    f"it was saved by {expected} ranks, but has files of the optimizer of {len(self._partitions)}"
                )
        if self.stage == 3 and len(self._models) != len(self._partitions):
            raise self._error(
                f"it has files of the model of {len(self._models)} ranks, of the optimizer {len(self._partitions)}"
            )

    def _files(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the files of all ranks, in the order of the ranks."""
        found = {}
        for path in (self._saved_files.folder / self._name).iterdir():
            match = pattern.fullmatch(path.name)
            if match is None:
                continue
            if int(match[2]):
                raise self._error(
                    f"`{path.name}` is a part of a tensor-parallel model, which is not read here"
                )
            found[int(match[1] or 0)] = path.name
        missing = [rank for rank in range(len(found)) if rank not in found]
        if missing:
            raise self._error(f"it has no file of rank {missing[0]} like `{found[max(found)]}`")
        return [found[rank] for rank in sorted(found)]

    def _read(self, file: str) -> Any:
        path = self._saved_files.path(f"{self._name}/{file}")
        content = read_torch_file(path, mmap=True, allowed=_KNOWN)
        if not isinstance(content, Mapping):
            raise self._error(f"`{file}` holds a {type(content).__name__}")
        return content

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(
            f"`{self._saved_files.folder / self._name}` cannot be loaded: {problem}. Copy or save the checkpoint again."
        )
