"""Load a checkpoint on all ranks: agree on the folder, read and check everything, then load and agree again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from torch import nn

from accel.checkpoints.items import (
    CustomItem,
    LoaderItem,
    ModelItem,
    OptimizerItem,
    RankItem,
    ScalerItem,
    SchedulerItem,
    StateItem,
    keep_rates_together,
    other_items,
)
from accel.checkpoints.runs import RunObjects, SavedRun, saved_formats
from accel_checkpoint import trusted_files
from accel_checkpoint.file_names import SAMPLER_NAME
from accel_checkpoint.functions import check_map_location
from accel_checkpoint.listing import (
    Found,
    check_loadable,
    part_of_save,
    token_of,
)
from accel_checkpoint.manifest import version_of
from accel_checkpoint.ranks.agreement import DeferredError, first
from accel_checkpoint.saving.saver import Saver, is_saved_here
from accel_checkpoint.strictness import LOADING_ERRORS, Strictness
from accel_state.errors import CheckpointError, ConfigError
from accel_state.logging import get_logger
from accel_state.mesh_layout import MeshLayout
from accel_state.user_warnings import warn_user

KINDS: Mapping[str, type[StateItem]] = MappingProxyType(
    {
        "models": ModelItem,
        "optimizers": OptimizerItem,
        "schedulers": SchedulerItem,
        "custom": CustomItem,
        "loaders": LoaderItem,
        "scaler": ScalerItem,
    }
)
"""Item classes by their names for users, in the order of the list of unused files."""
_ALL_KINDS: Mapping[str, type[StateItem]] = {**KINDS, "random_states": RankItem}
Content = tuple[StateItem, str, Any]
"""An item, its file, and what `StateItem.read` has returned."""
LoadHook = Callable[[list[nn.Module], str], None]
logger = get_logger(__name__)
_DEEPSPEED_NAMES = (
    "load_module_strict", "load_optimizer_states", "load_lr_scheduler_states", "load_module_only",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The kinds to load, and the strictness.

    Attributes:
        verify: Whether to read all files and compare their digests first.
        is_strict: Whether a mismatch is an error or a warning.
        strict_models: The same for weights that are missing or left over.
        restore_loaders: Whether loaders resume in the middle of an epoch.
        key_map: Prefixes of names in the models, by the prefixes in the checkpoint.
        skipped: Kinds of items that are not loaded.
    """

    verify: bool = False
    is_strict: bool = True
    strict_models: bool = True
    restore_loaders: bool = False
    key_map: Mapping[str, str] = field(default_factory=dict)
    skipped: Collection[type[StateItem]] = ()

    @classmethod
    def of(
        cls,
        load_kwargs: Mapping[str, Any] | None,
        others: Mapping[str, Any],
        *,
        only: Collection[str] | None,
        skip: Collection[str] | None,
        **options: Any,
    ) -> Self:
        """Return the options in the arguments of `load_state`.

        Raises:
            ConfigError: If an argument is unknown, would have no effect, or would allow unpickling; names it.
        """
        given = dict(load_kwargs or {})
        if given.pop("weights_only", True) is not True:
            raise ConfigError(
                "`weights_only=False` is not supported: a checkpoint could run code. Leave it out."
            )
        unknown = sorted({*given, *others} - {"map_location", *_DEEPSPEED_NAMES})
        if unknown:
            raise ConfigError(
                f"`load_state` knows no argument `{unknown[0]}`. Known: verify, strict, restore_loaders, "
                f"missing_ok, only, skip, key_map, trusted, load_kwargs, {', '.join(_DEEPSPEED_NAMES)}."
            )
        for location in (given.get("map_location"), others.get("map_location")):
            check_map_location(None if location == "on_device" else location)  # Accelerate's other value
        wanted = set(_ALL_KINDS if only is None else _kinds("only", only)) - _kinds("skip", skip or ())
        if others.get("load_module_only", False) or not others.get("load_optimizer_states", True):
            wanted.discard("optimizers")
        if others.get("load_module_only", False) or not others.get("load_lr_scheduler_states", True):
            wanted.discard("schedulers")
        if not wanted:
            raise ConfigError(
                "`only` and `skip` leave nothing to load. Leave one of them out, or name a kind."
            )
        if not isinstance(options.get("key_map", {}), Mapping):
            raise ConfigError(
                f"`key_map` is a {type(options['key_map']).__name__}. Pass a dict: the prefix of names in the model by "
                "the prefix in the checkpoint."
            )
        if options.get("key_map") and "models" not in wanted:
            raise ConfigError(
                "`key_map` has no effect: no models are loaded. Leave it out, or load `models`."
            )
        skipped = [kind for name, kind in _ALL_KINDS.items() if name not in wanted]
        strict_models = bool(others.get("load_module_strict", True))
        return cls(skipped=skipped, strict_models=strict_models, **options)


def _kinds(argument: str, names: Collection[str]) -> set[str]:
    """Return the kinds that a user names, one or several."""
    given = {names} if isinstance(names, str) else set(names)
    unknown = sorted(given - set(_ALL_KINDS))
    if unknown:
        raise ConfigError(f"`{argument}` knows no kind `{unknown[0]}`. Known: {', '.join(_ALL_KINDS)}.")
    return given


def load_checkpoint(
    run: RunObjects,
    input_dir: Path,
    *,
    saver: Saver,
    layout: MeshLayout,
    hooks: Sequence[LoadHook],
    options: LoadOptions,
    is_trusted: bool,
    may_vanish: bool = False,
) -> int | None:
    """Load a checkpoint. Every rank must call it; blocks until all ranks have loaded.

    With ``is_trusted``, or if this process has saved it, its pickles are read by any torch; see `trusted_files`.
    With ``may_vanish``, a folder that is removed during the load counts as replaced.

    Returns:
        Number of the next checkpoint; None if the checkpoints have no numbers.

    Raises:
        CheckpointError: On every rank, if any rank failed.
        ReplacedError: On every rank, if another save has replaced the checkpoint during the load.
    """
    folder, topology = input_dir, saver.topology
    saver.log_failure()
    has_nodes = topology.num_nodes > 1
    if topology.world_size > 1:
        # Rank 0 looks first: it may still be saving the checkpoint without a rank that arrived late.
        token = token_of(folder) if has_nodes and topology.rank == 0 else ""
        of_rank_0 = saver.agreement.agree_on("token", token, first)
    if has_nodes:
        # Without a shared disk, this node's part may be of a later save, which was killed before rank 0 committed.
        folder = part_of_save(folder, of_rank_0)
    is_replaced = partial(_is_replaced, folder, version_of(folder), may_vanish=may_vanish)
    found: Found | None = None
    token = next_number = ""
    with _not_loaded(saver, "checked", folder) as deferred:
        found = check_loadable(folder)
        token, next_number = found.token, found.next_number() if topology.local_rank == 0 else ""
    report = json.dumps([topology.node_rank, str(folder), token])
    of_rank_0 = deferred.agree(report, _token_of_rank_0, is_replaced=is_replaced())
    assert found is not None
    contents, is_open = list[Content](), True
    with trusted_files(is_trusted or is_saved_here(of_rank_0)):
        with _not_loaded(saver, "opened", folder) as deferred, found.files as files:
            if options.verify and topology.local_rank == 0:
                files.compare_all()
            left = [] if ModelItem in options.skipped else list(run.models)
            for hook in hooks:
                hook(left, str(found.path))
            saved = _saved_run(run, found, rank=topology.rank, layout=layout, options=options)
            contents, is_open = _read(run, left, saved, skipped=options.skipped), saved.formats.are_open
        deferred.agree(is_replaced=token != of_rank_0 or is_replaced())
        with run.stepper.loading():
            with _not_loaded(saver, "loaded", folder) as deferred:
                _load(run, contents, saved)
            next_number = deferred.agree(next_number, _highest, is_replaced=not is_open and is_replaced())
    return int(next_number) if next_number else None


def _saved_run(
    run: RunObjects, found: Found, *, rank: int, layout: MeshLayout, options: LoadOptions
) -> SavedRun:
    formats = saved_formats(
        found.files.names,
        form=run.form,
        saved_as="" if found.manifest is None else found.manifest.model_format,
        num_models=len(run.models),
        num_optimizers=len(run.optimizers),
    )
    return SavedRun(
        found,
        found.files,
        formats,
        rank,
        layout,
        strict=Strictness(options.is_strict),
        strict_models=Strictness(options.is_strict and options.strict_models),
        restore_loaders=options.restore_loaders,
        key_map=options.key_map,
    )


def _read(
    run: RunObjects, models: Sequence[nn.Module], saved: SavedRun, *, skipped: Collection[type[StateItem]]
) -> list[Content]:
    """Read and check the items of a checkpoint; nothing is changed.

    Args:
        run: The objects to load it into.
        models: Those of its models that no hook has loaded.
        saved: The checkpoint.
        skipped: Kinds of items that are not loaded.

    Raises:
        CheckpointError: If something does not fit; names the file and the object.
    """
    if f"{SAMPLER_NAME}.bin" in saved.files.names:
        logger.warning(
            "`%s.bin` holds a pickled sampler, which could run code, and is not loaded: the order of "
            "the samples follows from the seed. Save the checkpoint again to be rid of the file.",
            SAMPLER_NAME,
        )
    of_models = [ModelItem(run, index, model) for index, model in enumerate(models)]
    *others, rank = other_items(run, saved)
    items = [*of_models, *others, rank]
    items = [item for item in items if type(item) not in skipped]
    _warn_of_unused(items, saved, [kind for kind in KINDS.values() if kind not in skipped])
    names = [(item, item.file_in(saved)) for item in items]
    for item, name in names:
        if name is None:
            item.report_missing(saved)
    contents: list[Content] = []
    for item, name in names:
        if name is not None:
            try:
                contents.append((item, name, item.read(saved, name)))
            except LOADING_ERRORS as error:
                item.strictness(saved).report_error(error, file_name=name, into=item.label)
    if RankItem not in skipped and all(item is not rank for item, _, _ in contents):
        contents.append((rank, rank.file, None))
    return contents


def _load(run: RunObjects, contents: list[Content], saved: SavedRun) -> None:
    """Load the items that have been read."""
    loaded = [item for item, _, _ in contents]
    while contents:
        item, name, content = contents.pop(0)
        try:
            item.load(content, saved)
        except LOADING_ERRORS as error:
            item.strictness(saved).report_error(error, file_name=name, into=item.label)
        del content  # closes the file that it is mapped from
    keep_rates_together(run, loaded)
    if saved.restarted_loaders:
        logger.warning(
            "The checkpoint was saved in the middle of an epoch of %s. That epoch starts over, in the same order. "
            "Skip the batches already read with `skip_first_batches`, or call `load_state` with "
            "`restore_loaders=True`.",
            ", ".join(saved.restarted_loaders),
        )


def _warn_of_unused(items: Sequence[StateItem], saved: SavedRun, kinds: Sequence[type[StateItem]]) -> None:
    used = {(type(item), item.number) for item in items}
    unused = [
        f"`{kind.files.name(index)}`"
        for kind in kinds
        for index in kind.indexes_in(saved)
        if (kind, index) not in used
    ]
    if unused:
        warn_user(
            f"Nothing is prepared or registered for these files in `{saved.found.path}`, which are not loaded: "
            f"{', '.join(unused)}. To continue the training, prepare and register the same objects."
        )


def _not_loaded(saver: Saver, stage: str, folder: Path) -> DeferredError:
    agree = partial(saver.agreement.agree_on, is_begun=stage != "checked")  # all ranks reached that stage
    return DeferredError(agree, stage, failed=f"The checkpoint `{folder}` was not loaded")


def _is_replaced(folder: Path, version: tuple[int, ...] | None, *, may_vanish: bool) -> bool:
    """Whether a folder with a manifest now has another one than at first; if it has been removed, ``may_vanish``."""
    if not os.path.isdir(folder):  # noqa: PTH112 (raises nothing)
        return may_vanish
    return version is not None and version_of(folder) != version


def _token_of_rank_0(reports: Sequence[str]) -> str:
    """Return the token of rank 0; raise a `CheckpointError` if ranks of a node were given different checkpoints."""
    given: dict[int, tuple[int, str, str]] = {}
    for rank, (node, folder, token) in enumerate(map(json.loads, reports)):
        other_rank, other, other_token = given.setdefault(node, (rank, folder, token))
        if folder != other and (token != other_token or not token):
            raise CheckpointError(
                f"The ranks load different checkpoints: rank {other_rank} `{other}`, rank {rank} "
                f"`{folder}`. Pass the same folder on every rank."
            )
    return str(json.loads(reports[0])[2])


def _highest(numbers: Sequence[str]) -> str:
    """Return the highest of the numbers of all ranks; empty if checkpoints have no numbers."""
    return str(max((int(number) for number in numbers if number), default=""))
