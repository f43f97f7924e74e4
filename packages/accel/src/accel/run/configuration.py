"""Combine the arguments of `Accelerator` and the launcher's settings into one run configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from accel_backends import SchedulerSettings, Strategy, TorchDynamoPlugin, collect
from accel_backends.handlers.collection import Handlers
from accel_backends.precisions.fp8.selection import given_recipe, recipe_named
from accel_data import DataLoaderConfiguration
from accel_state import GradientAccumulationPlugin, ParallelismConfig
from accel_state.enums import DynamoBackend, FP8BackendType, RNGType
from accel_state.environment import read
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import InitProcessGroupKwargs, KwargsHandler
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:
    from accel_backends import (
        DeepSpeedPlugin,
        FullyShardedDataParallelPlugin,
        MegatronLMPlugin,
        TorchTensorParallelPlugin,
    )
    from accel_checkpoint import Retention

NOT_GIVEN: Any = object()
"""Default of arguments whose absence means something else than any value."""


def make_fsdp_plugin() -> FullyShardedDataParallelPlugin:
    """Return the plugin that the launcher's settings describe."""
    from accel_backends import FullyShardedDataParallelPlugin  # imports the engine

    return FullyShardedDataParallelPlugin()


def make_deepspeed_plugin() -> DeepSpeedPlugin:
    """Return the plugin that the launcher's settings describe."""
    from accel_backends import DeepSpeedPlugin

    return DeepSpeedPlugin()


def make_megatron_lm_plugin() -> MegatronLMPlugin:
    """Return the plugin that the launcher's settings describe."""
    from accel_backends import MegatronLMPlugin

    return MegatronLMPlugin()


ENGINE_PLUGINS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "use_fsdp": ("fsdp_plugin", make_fsdp_plugin),
    "use_deepspeed": ("deepspeed_plugin", make_deepspeed_plugin),
    "use_megatron_lm": ("megatron_lm_plugin", make_megatron_lm_plugin),
}
"""Those whose plugin reads the rest of what the launcher says: the argument it stands for, and what makes it."""


@dataclass
class ProjectConfiguration:
    """Folders of a project and how its checkpoints are named and kept.

    Args:
        project_dir: Folder for everything the project writes.
        logging_dir: Folder for local trackers; `project_dir` where not given.
        automatic_checkpoint_naming: Number checkpoints `checkpoints/checkpoint_0`, `checkpoint_1`, …
        total_limit: Number of newest checkpoints to keep; older ones are deleted after a new one is complete. Default:
            all.
        iteration: Number of the next checkpoint.
        save_on_each_node: Save on every machine's main process rather than on the one main process.
        retention: Which checkpoints to keep beside the newest: the best by a metric, every n-th; in place of
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

    def __post_init__(self) -> None:
        if self.total_limit is not None and not (_is_number(self.total_limit) and self.total_limit >= 1):
            raise ConfigError(
                "`total_limit` must be a whole number of at least 1, or None (keep all), "
                f"got {self.total_limit!r}."
            )
        if not (_is_number(self.iteration) and self.iteration >= 0):
            raise ConfigError(f"`iteration` must be a whole number and not negative, got {self.iteration!r}.")
        if self.total_limit is not None and self.retention is not None:
            raise ConfigError(
                "`total_limit` and `retention` both say how many checkpoints to keep. Use `Retention(newest=...)`."
            )
        if self.retention is not None and not self.automatic_checkpoint_naming:
            raise ConfigError(
                "`retention` is for numbered checkpoints. Set `automatic_checkpoint_naming=True`."
            )
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Set `project_dir`, and `logging_dir` where it has no folder of its own yet."""
        self.project_dir = None if project_dir is None else os.fspath(project_dir)
        if self.logging_dir is None:
            self.logging_dir = self.project_dir


@dataclass
class RunConfiguration:
    """Everything an `Accelerator` decided when it was built; nothing asks the environment afterwards.

    What a script assigns later holds for everything that is prepared from then on.
    """

    accumulation: GradientAccumulationPlugin
    loader: DataLoaderConfiguration
    project: ProjectConfiguration
    dynamo: TorchDynamoPlugin
    handlers: Handlers
    rng_types: tuple[RNGType, ...]
    plugins: Mapping[str, Any]
    plugin: Any
    strategy: str | None
    parallelism: ParallelismConfig | None
    device_placement: bool
    is_device_map_allowed: bool
    scheduling: SchedulerSettings

    @property
    def process_group(self) -> InitProcessGroupKwargs | None:
        """How the process group is to be set up, where the user said so."""
        return self.handlers.of(InitProcessGroupKwargs)


def resolve(
    *,
    device_placement: bool,
    split_batches: bool,
    gradient_accumulation_steps: int,
    dataloader_config: DataLoaderConfiguration | None,
    plugins: Mapping[str, Any],
    earlier_plugins: Mapping[str, Any],
    torch_tp_plugin: TorchTensorParallelPlugin | None,
    parallelism_config: ParallelismConfig | None,
    rng_types: Sequence[str | RNGType] | None,
    project_dir: str | os.PathLike[str] | None,
    project_config: ProjectConfiguration | None,
    gradient_accumulation_plugin: GradientAccumulationPlugin | None,
    step_scheduler_with_optimizer: bool,
    kwargs_handlers: Sequence[KwargsHandler] | None,
    dynamo_backend: DynamoBackend | str | None,
    dynamo_plugin: TorchDynamoPlugin | None,
    scheduler_unit: Literal["process", "optimizer_step"],
    fp8_backend: FP8BackendType | str | None,
) -> RunConfiguration:
    """Combine the arguments of `Accelerator`, which have the same names, with the settings of the launcher.

    `plugins` has the engine plugins by the name of their argument, None for those left out; `earlier_plugins` those
    that the state of this process was built with.

    Raises:
        ConfigError: If arguments contradict each other.
    """
    plugins, plugin, strategy = resolve_engine(plugins, earlier=earlier_plugins)
    loader = resolve_loader(split_batches, dataloader_config)
    return RunConfiguration(
        handlers=resolve_handlers(kwargs_handlers, fp8_backend),
        accumulation=with_steps_of_engine(
            resolve_accumulation(gradient_accumulation_steps, gradient_accumulation_plugin), plugin
        ),
        loader=loader,
        project=resolve_project(project_dir, project_config),
        dynamo=resolve_dynamo(dynamo_backend, dynamo_plugin),
        rng_types=resolve_rng_types(rng_types),
        plugins={**plugins, "torch_tp_plugin": torch_tp_plugin},
        plugin=plugin,
        strategy=strategy,
        parallelism=resolve_parallelism(torch_tp_plugin, parallelism_config),
        device_placement=device_placement,
        is_device_map_allowed=read("bypass_device_map"),
        scheduling=SchedulerSettings(step_scheduler_with_optimizer, loader.split_batches, scheduler_unit),
    )


def resolve_handlers(
    given: Sequence[KwargsHandler] | None, fp8_backend: FP8BackendType | str | None
) -> Handlers:
    """Combine the handlers with the library that computes in 8 bits, which a handler may name too.

    Raises:
        ConfigError: If a handler is not known, or the two name different libraries.
    """
    handlers = collect(given)
    if fp8_backend is not None:
        asked = recipe_named(fp8_backend)
        recipe = given_recipe(handlers)
        if recipe is None:
            handlers[type(asked)] = asked
        elif recipe.library != asked.library:
            raise ConfigError(
                f"`fp8_backend` is `{asked.library}`, but `kwargs_handlers` has a recipe of `{recipe.library}`. Pass "
                "the recipe alone."
            )
    return handlers


def resolve_accumulation(
    steps: int, plugin: GradientAccumulationPlugin | None, *, setting: Callable[[str], Any] = read
) -> GradientAccumulationPlugin:
    """Combine the two arguments and the launcher's setting; an argument wins over the setting.

    Raises:
        ConfigError: If both arguments are given, or the number of steps is below 1.
    """
    if plugin is not None:
        if steps != 1:
            raise ConfigError(
                f"`gradient_accumulation_steps` ({steps}) and `gradient_accumulation_plugin` "
                "say the same thing. Pass one of them."
            )
        if plugin.num_steps is not None:
            return plugin
    asked = setting("gradient_accumulation_steps")
    if asked is not None and steps == 1:
        steps = asked
    elif asked not in (None, steps):
        warn_user(
            f"The launcher asks for `gradient_accumulation_steps` {asked}, the script for {steps}; "
            "the script's holds.",
        )
    if type(steps) is not int or steps < 1:
        raise ConfigError(f"`gradient_accumulation_steps` must be a whole number from 1 up, got {steps!r}.")
    return replace(plugin or GradientAccumulationPlugin(), num_steps=steps)


def with_steps_of_engine(accumulation: GradientAccumulationPlugin, plugin: Any) -> GradientAccumulationPlugin:
    """Return the accumulation with the number of steps that the plugin of an engine names, if it names one.

    Raises:
        ConfigError: If another number was asked for.
    """
    steps = getattr(plugin, "gradient_accumulation_steps", None)
    if type(steps) is not int or steps == accumulation.num_steps:
        return accumulation
    if accumulation.num_steps == 1:
        return replace(accumulation, num_steps=steps)
    raise ConfigError(
        f"`gradient_accumulation_steps` is {steps} by the {type(plugin).__name__}, but {accumulation.num_steps} by the "
        'Accelerator. Say it in one place; `"auto"` in the config of the engine takes over what the Accelerator says.'
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
            "Pass it in `dataloader_config` alone."
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
    backend: DynamoBackend | str | None, plugin: TorchDynamoPlugin | None
) -> TorchDynamoPlugin:
    """Combine the two ways of asking for `torch.compile`.

    Raises:
        ConfigError: If both are given.
    """
    if backend is None:
        return plugin or TorchDynamoPlugin()
    if plugin is not None:
        raise ConfigError("`dynamo_backend` and `dynamo_plugin` say the same thing. Pass one of them.")
    return TorchDynamoPlugin(backend=DynamoBackend(str(backend).upper()))


def resolve_engine(
    plugins: Mapping[str, Any],
    *,
    earlier: Mapping[str, Any] = MappingProxyType({}),
    setting: Callable[[str], Any] = read,
) -> tuple[Mapping[str, Any], Any, str | None]:
    """Find which engine trains the model: the plugin that was passed, or what the launcher asked for.

    Args:
        plugins: Plugin by the name of its argument, or a dict of several by names of their own, the first of which
            counts; those left out are None.
        earlier: Plugins of an earlier `Accelerator` of this process, by the same names; one of them counts where
            nothing else is passed.
        setting: Reads a setting by its name.

    Returns:
        The plugins with one that the launcher's settings stand for, the plugin that counts (or None), and the name of
        its strategy (None: decided by the number of processes).

    Raises:
        ConfigError: If several are given, or a plugin names no strategy.
    """
    given = _without_none(plugins)
    if len(given) > 1:
        raise ConfigError(
            f"Only one engine can train a model, got {', '.join(f'`{n}`' for n in given)}. Pass one of them."
        )
    for name, passed in (given or _without_none(earlier)).items():
        plugin = _first_plugin(name, passed)
        strategy = getattr(plugin, "strategy", None)
        if not isinstance(strategy, str):
            raise ConfigError(
                f"`{name}` is a {type(plugin).__name__}, which does not name its strategy. "
                "Give the class a `strategy` attribute with the name of an installed strategy."
            )
        return plugins, plugin, strategy
    for switch, (name, make) in ENGINE_PLUGINS.items():
        if setting(switch):
            plugin = make()
            return {**plugins, name: plugin}, plugin, plugin.strategy
    return plugins, None, None


def one_of(**arguments: Any) -> Any:
    """Return the argument that was passed, of several names for the same thing, None if none was.

    Raises:
        ConfigError: If more than one was.
    """
    given = _without_none(arguments)
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(f'`{name}`' for name in given)} say the same thing. Pass one of them."
        )
    return next(iter(given.values()), None)


def _first_plugin(name: str, passed: Any) -> Any:
    """Return the plugin that was passed, or the first of several.

    Raises:
        ConfigError: If there is none, or they are for different strategies.
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


def _without_none(plugins: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plugin for name, plugin in plugins.items() if plugin is not None}


def resolve_parallelism(
    plugin: TorchTensorParallelPlugin | None, config: ParallelismConfig | None
) -> ParallelismConfig | None:
    """Combine the older plugin of tensor parallelism with the axes of parallelism.

    Raises:
        ConfigError: If both are given.
    """
    if plugin is None:
        return config
    if config is not None:
        raise ConfigError(
            "`torch_tp_plugin` and `parallelism_config` both say how layers are shared. Pass the second alone."
        )
    warn_user(
        f"`torch_tp_plugin` is deprecated: pass `parallelism_config=ParallelismConfig(tp_size={plugin.tp_size})`.",
        FutureWarning,
    )
    return ParallelismConfig(tp_size=plugin.tp_size)


def resolve_rng_types(rng_types: Sequence[str | RNGType] | None) -> tuple[RNGType, ...]:
    """Return which generators every rank sets alike at the start of an epoch; samplers' own by default."""
    return (RNGType.GENERATOR,) if rng_types is None else tuple(RNGType(kind) for kind in rng_types)


def check_axes(config: ParallelismConfig | None, strategy: Strategy) -> None:
    """Refuse axes of parallelism that the strategy would not serve, or not by what is named.

    Raises:
        ConfigError: Naming them.
    """
    served = strategy.capabilities.mesh_axes
    asked = [] if config is None else [*config.active_mesh_dims, *(["ep"] if config.ep_enabled else [])]
    idle = [axis for axis in asked if axis not in served]
    if idle:
        raise ConfigError(
            f"`parallelism_config` has {', '.join(f'`{axis}_size`' for axis in idle)} above 1, which the "
            f"strategy `{strategy.name}` does not do. It serves: {', '.join(sorted(served))}. Use an engine that "
            "does, or set them to 1."
        )
    backend = strategy.capabilities.sp_backend
    if config is not None and config.sp_enabled and config.sp_backend != backend:
        raise ConfigError(
            f"`sp_backend` of `parallelism_config` is `{config.sp_backend}`, but the strategy `{strategy.name}` shares "
            f'sequences by `{backend}`. Pass `sp_backend="{backend}"`, or the plugin of the engine that is meant.'
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
