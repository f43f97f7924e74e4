"""Combine the arguments of `Accelerator` and the launcher's settings into one run configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import accel_backends
from accel_backends import Handlers, SchedulerSettings, TorchDynamoPlugin, collect
from accel_backends.precisions.fp8.selection import given_recipe, recipe_named
from accel_checkpoint import Retention
from accel_data import DataLoaderConfiguration
from accel_state import AcceleratorState, GradientAccumulationPlugin, ParallelismConfig
from accel_state.enums import DynamoBackend, FP8BackendType, RNGType
from accel_state.environment import read
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import KwargsHandler
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:
    from accel_backends import TorchTensorParallelPlugin

NOT_GIVEN: Any = object()
"""Default of arguments whose None is a value."""


PLUGINS = ("deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "strategy_plugin")
"""The arguments of `Accelerator` that select the engine; at most one may be passed."""
# By the setting that selects an engine: its argument, and its class, which is imported only when it is used.
_PLUGIN_OF_SETTING = {
    "use_fsdp": ("fsdp_plugin", "FullyShardedDataParallelPlugin"),
    "use_deepspeed": ("deepspeed_plugin", "DeepSpeedPlugin"),
    "use_megatron_lm": ("megatron_lm_plugin", "MegatronLMPlugin"),
}


@dataclass
class ProjectConfiguration:
    """Folders of a project and how its checkpoints are named and kept.

    Args:
        project_dir: Folder for everything the project writes.
        logging_dir: Folder for local trackers. Default: `project_dir`.
        automatic_checkpoint_naming: Number checkpoints `checkpoints/checkpoint_0`, `checkpoint_1`, …
        total_limit: Number of newest checkpoints to keep; older ones are deleted after a new one is complete. Default:
            all.
        iteration: Number of the next checkpoint.
        save_on_each_node: Save on every machine's main process rather than on the one main process.
        retention: The checkpoints to keep in addition to the newest: the best by a metric, every n-th. Replaces
            `total_limit`.

    Raises:
        ConfigError: If `total_limit` is below 1 or `iteration` is negative, or if both `total_limit` and `retention`
            are given.
    """

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False
    retention: Retention | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "total_limit" and value is not None and not (_is_number(value) and value >= 1):
            raise ConfigError(
                f"`total_limit` must be a whole number of at least 1, or None (keep all), got {value!r}."
            )
        if name == "iteration" and not (_is_number(value) and value >= 0):
            raise ConfigError(f"`iteration` must be a whole number of at least 0, got {value!r}.")
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        if self.total_limit is not None and self.retention is not None:
            raise ConfigError(
                "`total_limit` and `retention` both set the number of checkpoints to keep. Use `Retention(newest=...)`."
            )
        if self.retention is not None and not self.automatic_checkpoint_naming:
            raise ConfigError(
                "`retention` is for numbered checkpoints. Set `automatic_checkpoint_naming=True`."
            )
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Set `project_dir`, and `logging_dir` if that is not set."""
        self.project_dir = None if project_dir is None else os.fspath(project_dir)
        if self.logging_dir is None:
            self.logging_dir = self.project_dir


@dataclass
class RunConfiguration:
    """The decisions of an `Accelerator` when it is built; the environment is not read afterwards.

    A value that a script assigns later applies to everything that is prepared afterwards.
    """

    accumulation: GradientAccumulationPlugin
    loader: DataLoaderConfiguration
    project: ProjectConfiguration
    dynamo: TorchDynamoPlugin
    handlers: Handlers
    rng_types: list[RNGType]
    plugins: Mapping[str, Any]
    plugin: Any
    parallelism: ParallelismConfig | None
    device_placement: bool
    is_device_map_allowed: bool
    scheduling: SchedulerSettings


def resolve(given: Mapping[str, Any]) -> RunConfiguration:
    """Combine the arguments of `Accelerator`, by their names, with the settings of the launcher.

    An `Accelerator` of this process that was built earlier provides the engine and the compilation options that are
    left out.

    Raises:
        ConfigError: If arguments contradict each other.
    """
    earlier = AcceleratorState() if AcceleratorState.is_initialized() else None
    passed = {name: given[name] for name in PLUGINS}
    passed["deepspeed_plugin"] = one_of(
        deepspeed_plugin=given["deepspeed_plugin"], deepspeed_plugins=given["deepspeed_plugins"]
    )
    plugins, plugin = resolve_engine(
        passed, earlier={name: getattr(earlier, name) for name in PLUGINS} if earlier else {}
    )
    loader = resolve_loader(given["split_batches"], given["dataloader_config"])
    return RunConfiguration(
        accumulation=resolve_accumulation(
            given["gradient_accumulation_steps"], given["gradient_accumulation_plugin"], engine=plugin
        ),
        loader=loader,
        project=resolve_project(given["project_dir"], given["project_config"]),
        dynamo=resolve_dynamo(
            given["dynamo_backend"],
            given["dynamo_plugin"],
            earlier=None if earlier is None else earlier.dynamo_plugin,
        ),
        handlers=resolve_handlers(given["kwargs_handlers"], given["fp8_backend"]),
        rng_types=resolve_rng_types(given["rng_types"]),
        plugins={**plugins, "torch_tp_plugin": given["torch_tp_plugin"]},
        plugin=plugin,
        parallelism=resolve_parallelism(given["torch_tp_plugin"], given["parallelism_config"]),
        device_placement=given["device_placement"],
        is_device_map_allowed=read("bypass_device_map"),
        scheduling=SchedulerSettings(
            given["step_scheduler_with_optimizer"], loader.split_batches, given["scheduler_unit"]
        ),
    )


def resolve_handlers(
    given: Sequence[KwargsHandler] | None, fp8_backend: FP8BackendType | str | None
) -> Handlers:
    """Combine the handlers with `fp8_backend`; a handler may select the library for 8-bit arithmetic too.

    Raises:
        ConfigError: If a handler is unknown, or the two name different libraries.
    """
    handlers = collect(given) if given else Handlers()
    if fp8_backend is not None:
        default = recipe_named(fp8_backend)
        recipe = given_recipe(handlers)
        if recipe is None:
            handlers[type(default)] = default
        elif recipe.library != default.library:
            raise ConfigError(
                f"`fp8_backend` is `{default.library}`, but `kwargs_handlers` has a recipe of `{recipe.library}`. Pass "
                "the recipe alone."
            )
    return handlers


def resolve_accumulation(
    steps: int, plugin: GradientAccumulationPlugin | None, *, engine: Any = None
) -> GradientAccumulationPlugin:
    """Combine the two arguments, the launcher's setting, and the number of steps of the engine's plugin, if it has one.

    Raises:
        ConfigError: If both arguments are given, the number of steps is below 1, or the engine has another.
    """
    one_of(gradient_accumulation_steps=None if steps == 1 else steps, gradient_accumulation_plugin=plugin)
    if plugin is None or plugin.num_steps is None:
        launched = read("gradient_accumulation_steps")
        if launched is not None and steps == 1:
            steps = launched
        elif launched not in (None, steps):
            warn_user(
                f"The launcher sets `gradient_accumulation_steps` to {launched}, but the script to {steps}, which is "
                "used.",
            )
        if type(steps) is not int or steps < 1:
            raise ConfigError(
                f"`gradient_accumulation_steps` must be a whole number of at least 1, got {steps!r}."
            )
        plugin = replace(plugin or GradientAccumulationPlugin(), num_steps=steps)
    steps_of_engine = getattr(engine, "gradient_accumulation_steps", None)
    if type(steps_of_engine) is not int or steps_of_engine == plugin.num_steps:
        return plugin
    if plugin.num_steps == 1:
        return replace(plugin, num_steps=steps_of_engine)
    raise ConfigError(
        f"`gradient_accumulation_steps` is {steps_of_engine} by the {type(engine).__name__}, but {plugin.num_steps} by "
        "the Accelerator. Remove one of them; "
        '`"auto"` in the engine config uses the Accelerator\'s number.'
    )


def resolve_loader(split_batches: Any, config: DataLoaderConfiguration | None) -> DataLoaderConfiguration:
    """Combine the older `split_batches` argument with a copy of the loader configuration.

    Raises:
        ConfigError: If the two contradict.
    """
    config = DataLoaderConfiguration() if config is None else copy(config)
    if split_batches is NOT_GIVEN or split_batches == config.split_batches:
        return config
    if config.split_batches:
        raise ConfigError(
            f"`split_batches` is {split_batches} here and {config.split_batches} in `dataloader_config`. "
            "Pass it only in `dataloader_config`."
        )
    return replace(config, split_batches=bool(split_batches))


def resolve_project(
    project_dir: str | os.PathLike[str] | None, config: ProjectConfiguration | None
) -> ProjectConfiguration:
    """Combine the folder with the project's configuration, without changing what the user passed."""
    config = replace(config) if config is not None else ProjectConfiguration()
    if project_dir is not None and config.project_dir is None:
        config.set_directories(project_dir)
    return config


def resolve_dynamo(
    backend: DynamoBackend | str | None,
    plugin: TorchDynamoPlugin | None,
    *,
    earlier: TorchDynamoPlugin | None = None,
) -> TorchDynamoPlugin:
    """Combine the two ways to request `torch.compile`; an earlier `Accelerator`'s counts if neither is given.

    Raises:
        ConfigError: If both are given.
    """
    if one_of(dynamo_backend=backend, dynamo_plugin=plugin) is None:
        return earlier or TorchDynamoPlugin()
    return plugin or TorchDynamoPlugin(backend=DynamoBackend(str(backend).upper()))


def resolve_engine(
    plugins: Mapping[str, Any], *, earlier: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Mapping[str, Any], Any]:
    """Select the engine that trains the model: by the plugin that was passed, or by the launcher's settings.

    Args:
        plugins: Plugins by the name of their argument, None if left out. A plugin may be a dict of several by name,
            of which the first is selected.
        earlier: Plugins of an earlier `Accelerator` of this process, by the same names; used if none is passed.

    Returns:
        The plugins, including one made from the launcher's settings, and the selected plugin, None if the number of
        processes decides.

    Raises:
        ConfigError: If several are given, or a plugin names no strategy.
    """
    given = {name: plugin for name, plugin in plugins.items() if plugin is not None}
    if len(given) > 1:
        raise ConfigError(
            f"Only one engine can train a model, got {', '.join(f'`{n}`' for n in given)}. Pass one of them."
        )
    for name, passed in (given or earlier).items():
        if passed is None:
            continue
        plugin = _first_plugin(name, passed)
        if not isinstance(getattr(plugin, "strategy", None), str):
            raise ConfigError(
                f"`{name}` is a {type(plugin).__name__}, which does not name its strategy. "
                "Give the class a `strategy` attribute with the name of an installed strategy."
            )
        return plugins, plugin
    for setting, (name, class_name) in _PLUGIN_OF_SETTING.items():
        if read(setting):
            plugin = getattr(accel_backends, class_name)()
            return {**plugins, name: plugin}, plugin
    return plugins, None


def one_of(**arguments: Any) -> Any:
    """Return the value of the one alias that was passed, None if none was.

    Raises:
        ConfigError: If several were.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(f'`{name}`' for name in given)} are one setting. Pass one of them.")
    return next(iter(given.values()), None)


def _first_plugin(name: str, passed: Any) -> Any:
    """Return the plugin, or the first of a dict of plugins.

    Raises:
        ConfigError: If the dict is empty, or its plugins are for different strategies.
    """
    if not isinstance(passed, Mapping):
        return passed
    strategies = {getattr(plugin, "strategy", None) for plugin in passed.values()}
    if len(strategies) != 1:
        raise ConfigError(
            f"`{name}` is a dict of {len(passed)} plugins for {len(strategies)} strategies. Give at least one plugin, "
            "all for the same strategy."
        )
    return next(iter(passed.values()))


def resolve_parallelism(
    plugin: TorchTensorParallelPlugin | None, config: ParallelismConfig | None
) -> ParallelismConfig | None:
    """Combine the deprecated `torch_tp_plugin` with `parallelism_config`.

    Raises:
        ConfigError: If both are given.
    """
    one_of(torch_tp_plugin=plugin, parallelism_config=config)
    if plugin is None:
        return config
    warn_user(
        f"`torch_tp_plugin` is deprecated: pass `parallelism_config=ParallelismConfig(tp_size={plugin.tp_size})`.",
        FutureWarning,
    )
    return ParallelismConfig(tp_size=plugin.tp_size)


def resolve_rng_types(rng_types: Sequence[str | RNGType] | None) -> list[RNGType]:
    """Return the RNGs to synchronize at the start of each epoch; by default the generators of samplers."""
    return [RNGType.GENERATOR] if rng_types is None else [RNGType(kind) for kind in rng_types]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
