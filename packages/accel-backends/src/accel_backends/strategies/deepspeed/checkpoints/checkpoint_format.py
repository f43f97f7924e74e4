"""The files that DeepSpeed writes, as a format of checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from accel_backends.checkpoint_formats.full import FullFormat
from accel_backends.checkpoint_formats.named import (
    NamedFormat,
    SavedState,
    check_names,
    named_parameters,
)
from accel_backends.checkpoint_formats.protocol import PreparedOptimizer, SaveChoices
from accel_backends.strategies.deepspeed.checkpoints.engine_files import (
    SAVE_ARGUMENTS,
    TextFile,
    files_of_engine,
    scripts,
)
from accel_backends.strategies.deepspeed.checkpoints.saved_engine import SavedEngine
from accel_backends.strategies.deepspeed.checkpoints.states import EngineState, SavedWeights
from accel_checkpoint.file_names import ENGINE_NAME, ENGINES
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.saving.pending_files import JsonFile, PendingFile
from accel_checkpoint.tensors import DeferredTensor, fetched
from accel_state.errors import CheckpointError

_MODEL = re.compile(rf"{ENGINE_NAME}(?:_(\d+))?/(?:zero_pp_rank_0_)?mp_rank_00_model_states\.pt")
_PARTITION = re.compile(rf"{ENGINE_NAME}(?:_(\d+))?/(?:bf16_)?zero_pp_rank_0_mp_rank_00_optim_states\.pt")
_MARK = re.compile(rf"{ENGINE_NAME}(?:_(\d+))?/optimizer_(\d+)\.json")


class DeepSpeedFormat(NamedFormat):
    """`pytorch_model/` with the files of DeepSpeed's own save: of each rank the parts that it holds.

    Any number of ranks reads them, in any strategy, without DeepSpeed and without running code.
    """

    name: ClassVar[str] = "deepspeed"
    needs_shared_disk: ClassVar[bool] = True
    save_arguments: ClassVar[frozenset[str]] = frozenset(SAVE_ARGUMENTS)

    def __init__(self) -> None:
        self._folders: dict[Any, str] = {}  # of the engines that are being saved

    def indexes_in(self, names: Collection[str]) -> tuple[list[int], list[int]]:
        """Return the indexes of the models whose engines have files, and of the optimizers in such files."""
        return sorted(_engines(_MODEL, names)), sorted(_optimizers(names))

    def model_files(
        self, state: Mapping[str, Any], *, index: int, choices: SaveChoices
    ) -> Sequence[PendingFile]:
        """Return what this rank's engine writes, with its optimizer; communicates.

        A model that is not trained is saved whole.
        """
        if not isinstance(state, EngineState):
            return FullFormat().model_files(state, index=index, choices=choices)
        self._folders[state.engine] = ENGINES.name(index)
        files = files_of_engine(state.engine, ENGINES.name(index), choices.engine_options)
        if index == 0 and choices.is_writer:
            if choices.engine_options.get("save_latest", True):
                files.append(TextFile("latest", ENGINES.name(0)))
            files += scripts(state.engine)
        return files

    def optimizer_files(
        self, optimizer: PreparedOptimizer, *, index: int, choices: SaveChoices
    ) -> Sequence[PendingFile]:
        """Return a file with the engine of the optimizer; the engine has saved its state."""
        state = optimizer.strategy.optimizer_tensors(optimizer.optimizer)
        if not isinstance(state, EngineState):
            raise CheckpointError(
                "The format `deepspeed` holds what a DeepSpeed engine saves, but the optimizer is in none. Save in the "
                "format `full`."
            )
        folder = self._folders.get(state.engine)
        if folder is None:
            raise CheckpointError(
                f"Optimizer {index} belongs to an engine that is not saved: a hook took its model out of the list. "
                "Leave the models of DeepSpeed in it."
            )
        names = iter(named_parameters(optimizer))
        groups = [[next(names) for _ in group["params"]] for group in state["param_groups"]]
        mark = JsonFile(f"{folder}/optimizer_{index}.json", {"parameters": groups})
        return [mark] if choices.is_writer else []

    def open_state(self, files: SavedFiles, *, index: int) -> _SavedModel:
        """Return the state, mapped from the files of all ranks."""
        return _SavedModel(SavedEngine(files, ENGINES.name(index)))

    def model_file(self, index: int) -> str:
        """Return the folder of an engine."""
        return ENGINES.name(index)

    def optimizer_file(self, index: int) -> str:
        """Return the name that messages use for the state of an optimizer."""
        return f"optimizer_{index} of DeepSpeed"

    def read_optimizer(
        self, files: SavedFiles, optimizer: PreparedOptimizer, *, index: int
    ) -> Mapping[str, Any]:
        """Return the state; its tensors are deferred if the parameters are."""
        number, mark = _optimizers(files.names)[index]
        saved = SavedEngine(files, ENGINES.name(number))
        own = named_parameters(optimizer)
        numbers = {name: place for place, name in enumerate(own)}
        groups, states = _optimizer_of(saved, files, mark, list(own), self.optimizer_file(index))
        check_names(
            [name for group in groups for name in group["params"]], numbers, self.optimizer_file(index)
        )
        are_deferred = any(isinstance(one, DeferredTensor) for one in own.values())
        return {
            "state": {
                numbers[name]: {
                    kind: value if are_deferred else fetched(value) for kind, value in state.items()
                }
                for name, state in sorted(states.items(), key=lambda item: numbers[item[0]])
            },
            "param_groups": [
                {**group, "params": sorted(numbers[name] for name in group["params"])} for group in groups
            ],
        }


class _SavedModel(SavedState):
    """The weights of an engine."""

    def __init__(self, saved: SavedEngine) -> None:
        self._saved = saved
        self._weights = saved.weights()
        self.shapes = {
            name: tuple(value.shape) if isinstance(value, (torch.Tensor, DeferredTensor)) else None
            for name, value in self._weights.items()
        }

    def read(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the weights: deferred where those of ``own`` are, else tensors."""
        if any(isinstance(value, DeferredTensor) for value in own.values()):
            return SavedWeights(self._weights, counters=self._saved.counters())
        return _Fetched(self._weights)


class _Fetched(Mapping[str, Any]):
    """Weights that are fetched on access, and not kept."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Any:
        return fetched(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _optimizer_of(
    saved: SavedEngine, files: SavedFiles, mark: str | None, own: Sequence[str], what: str
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the parameter groups, with names, and the states by name."""
    plain = saved.plain_optimizer_state()
    if plain is None:
        if not saved.has_optimizer:
            raise CheckpointError(
                f"`{what}` is not in `{files.folder}`: the engine had no optimizer. "
                "Prepare the model without an optimizer, or load a checkpoint that has one."
            )
        return saved.optimizer_groups(), saved.optimizer_states()
    if "param_groups" not in plain:
        raise CheckpointError(
            f"`{what}` in `{files.folder}` was saved without ZeRO in bf16 or fp16, which is not read. Use ZeRO stage 1."
        )
    numbers = [number for group in plain["param_groups"] for number in group["params"]]
    names = own if mark is None else _names_in(files, mark)
    if len(names) != len(numbers):
        raise CheckpointError(
            f"`{what}` in `{files.folder}` has {len(numbers)} parameters, but the optimizer here has {len(names)}. "
            "Make the optimizer as in the saved run."
        )
    name_of = dict(zip(numbers, names, strict=True))
    groups = [
        {**group, "params": [name_of[number] for number in group["params"]]}
        for group in plain["param_groups"]
    ]
    return groups, {name_of[number]: state for number, state in plain["state"].items()}


def _names_in(files: SavedFiles, mark: str) -> list[str]:
    try:
        groups = json.loads(files.path(mark).read_text(encoding="utf-8"))["parameters"]
        return [str(name) for group in groups for name in group]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"`{files.folder / mark}` is damaged: {error}. Copy or save the checkpoint again."
        ) from error


def _engines(pattern: re.Pattern[str], names: Collection[str]) -> dict[int, str]:
    """Return the indexes of the engines with a file of that kind, and its name."""
    matches = (pattern.fullmatch(name) for name in names)
    return {int(found[1] or 0): found[0] for found in matches if found is not None}


def _optimizers(names: Collection[str]) -> dict[int, tuple[int, str | None]]:
    """Return for each optimizer the index of its engine, and the file that tells so.

    Other packages write no such file: there the optimizers have the order of their engines. Without ZeRO they are in
    the files of the models, so every engine counts.
    """
    marks = [found for found in map(_MARK.fullmatch, names) if found is not None]
    if marks:
        return {int(found[2]): (int(found[1] or 0), found[0]) for found in marks}
    engines = _engines(_PARTITION, names) or _engines(_MODEL, names)
    return {index: (number, None) for index, number in enumerate(sorted(engines))}
