"""How a model is trained by DeepSpeed: ZeRO's stage, offloading, and DeepSpeed's own config."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from torch import nn

from accel_backends.module_lookup import get_module_class_from_name
from accel_backends.plugins.deepspeed import values
from accel_backends.plugins.deepspeed.config_tree import AUTO, Change, changes, leaves, node_of, unfill
from accel_backends.plugins.deepspeed.filling import Facts, Filled, Said, fill, fill_said
from accel_backends.plugins.deepspeed.hf_config import HfDeepSpeedConfig
from accel_backends.plugins.deepspeed.loading import join_group, load_deepspeed
from accel_backends.plugins.deepspeed.rules import AUTOTP_SIZE, autotp_size
from accel_backends.plugins.deepspeed.zero3_init import announce, withdraw
from accel_state.availability import why_not
from accel_state.enums import DistributedType
from accel_state.environment import environ
from accel_state.errors import ConfigError, StateError
from accel_state.mesh_layout import MeshLayout
from accel_state.runtime import current_runtime, has_runtime
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

OffloadDevice: TypeAlias = Literal["none", "cpu", "nvme"]


@dataclass
class DeepSpeedPlugin:
    """Settings of training by DeepSpeed. What is None is read from ``ACCELERATE_DEEPSPEED_*`` at construction.

    Without a config of DeepSpeed's own, one is made from the other arguments. With one, arguments fill what is
    ``"auto"`` in it or missing, and must agree with the rest. What only the run knows stays ``"auto"`` until a model
    is prepared: batch sizes, the hidden size, the learning rate.

    Args:
        hf_ds_config: DeepSpeed's own config: the path of its JSON file, a dict, the file in base64, or an
            `HfDeepSpeedConfig`, which is then shared.
        gradient_accumulation_steps: Batches per optimizer step, or ``"auto"`` to follow the `Accelerator`.
        gradient_clipping: Norm that gradients are clipped to; 0.0 is off, as it is where nobody says it.
        zero_stage: What ZeRO shards: nothing (0), optimizer states (1), gradients too (2), parameters too (3).
        is_train_batch_min: Whether the smallest batch size of the loaders that are prepared counts, not the largest.
        offload_optimizer_device: Where optimizer states are kept: ``none``, ``cpu`` (ZeRO 1 to 3), ``nvme`` (ZeRO 3).
        offload_param_device: Where parameters are kept (ZeRO 3).
        offload_optimizer_nvme_path: Folder for optimizer states on NVMe.
        offload_param_nvme_path: Folder for parameters on NVMe.
        zero3_init_flag: Whether transformers builds its models sharded from the start (ZeRO 3). By default it does
            with ZeRO 3, where both it and DeepSpeed are installed.
        zero3_save_16bit_model: Whether DeepSpeed's own save gathers the 16-bit weights (ZeRO 3).
        transformer_moe_cls_names: Classes of mixture-of-experts layers that ZeRO 3 keeps whole, with commas between.
        enable_msamp: Not offered: DeepSpeed with MS-AMP.
        msamp_opt_level: Belongs to ``enable_msamp``.

    Raises:
        ConfigError: If a value is unknown, or contradicts another; all contradictions are told at once.
    """

    distributed_type: ClassVar[DistributedType] = DistributedType.DEEPSPEED
    strategy: ClassVar[str] = "deepspeed"

    hf_ds_config: Any = None
    gradient_accumulation_steps: int | str | None = None
    gradient_clipping: float | str | None = None
    zero_stage: int | None = None
    is_train_batch_min: bool = True
    offload_optimizer_device: OffloadDevice | None = None
    offload_param_device: OffloadDevice | None = None
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool | None = None
    zero3_save_16bit_model: bool | None = None
    transformer_moe_cls_names: str | None = None
    enable_msamp: bool | None = None
    msamp_opt_level: Literal["O1", "O2"] | None = None
    deepspeed_config: dict[str, Any] = field(init=False, repr=False)
    facts: Facts = field(init=False, repr=False, compare=False)
    origins: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)
    source: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.enable_msamp or self.msamp_opt_level is not None:
            raise ConfigError(
                "`enable_msamp` and `msamp_opt_level` are not offered: MS-AMP is no longer developed, and knows "
                "DeepSpeed up to 0.9.2, accel from 0.16 on. Leave them out, and use `mixed_precision='bf16'`."
            )
        self._selected = False
        self._announced: Any = None
        self._filled: dict[str, Change] = {}
        given = values.config_of(self.hf_ds_config)
        self.facts = values.facts_of(self, has_config=given is not None)
        self.source = values.source_of(self.hf_ds_config)
        self.hf_ds_config = given if given is not None else HfDeepSpeedConfig(values.TEMPLATE)
        self.deepspeed_config = self.hf_ds_config.config
        if given is not None:
            values.check_sections(self.deepspeed_config, self.facts, self.source)
        self._adopt(fill_said(self.deepspeed_config, self.facts, source=self.source))
        self._read_back()
        values.check_stage(self.zero_stage, self.facts, self.deepspeed_config)
        self.zero3_init_flag = self._is_zero3_init_wanted()
        if self.zero3_init_flag and has_runtime() and not current_runtime().has_ended:
            # The Trainer of transformers builds models before its Accelerator.
            join_group(load_deepspeed(current_runtime()))
        if self.transformer_moe_cls_names is None:
            names = environ.read("deepspeed_moe_layer_cls_names")
            self.transformer_moe_cls_names = None if names is None else ",".join(names)

    @property
    def config(self) -> dict[str, Any]:
        """The config, under the name that `deepspeed.zero.Init` is given it by."""
        return self.deepspeed_config

    def fill(self, facts: Facts) -> Filled:
        """Return the config with every ``auto`` filled, as ``deepspeed_config`` then shows it too.

        What this fills is filled anew by the next call, for another model. Warns where the config says something else
        than the script, and holds.

        Args:
            facts: What the run knows; the plugin adds what it was told itself.

        Raises:
            ConfigError: If values contradict each other, or an ``auto`` remains.
        """
        unfilled = unfill(self.deepspeed_config, self._filled)
        filled = fill(unfilled, facts.over(self.facts), source=self.source, origins=self.origins)
        _warn(filled.notes)
        self._filled = changes(unfilled, filled.config)
        self._show(filled.config)
        return filled

    def is_auto(self, ds_key_long: str) -> bool:
        """Tell whether a key such as ``zero_optimization.stage`` is ``"auto"``."""
        return bool(self.get_value(ds_key_long) == AUTO)

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Return what a key of the config says, or ``default`` where the config does not have it."""
        return self.hf_ds_config.get_value(ds_key_long, default)

    def fill_match(
        self,
        ds_key_long: str,
        mismatches: list[str] | None = None,
        must_match: bool = True,
        **kwargs: Any,
    ) -> None:
        """Fill one key of the config if it is ``"auto"``; otherwise compare it.

        Args:
            ds_key_long: The key with its section, as ``zero_optimization.stage``.
            mismatches: Gets a sentence where the key has another value than the one given.
            must_match: Whether to compare.
            **kwargs: Values by key.

        Raises:
            ConfigError: If the key is ``"auto"`` and no value is given for it.
        """
        section, last = self.hf_ds_config.find_config_node(ds_key_long)
        if section is None:
            return
        values.fill_or_compare(section, last, ds_key_long, kwargs, mismatches if must_match else None)

    def deepspeed_config_process(
        self,
        prefix: str = "",
        mismatches: list[str] | None = None,
        config: MutableMapping[str, Any] | None = None,
        must_match: bool = True,
        **kwargs: Any,
    ) -> None:
        """Fill all keys of a config that are ``"auto"``, and compare the others; see `fill_match`.

        Args:
            prefix: The section that ``config`` is, with a dot at its end; empty for a whole config.
            mismatches: Gets a sentence for each key with another value than the one given.
            config: The config, changed in place; the plugin's if omitted.
            must_match: Whether to compare.
            **kwargs: Values by key, with their sections.

        Raises:
            ConfigError: If a key is ``"auto"`` and no value is given for it, or, of a whole config, keys have other
                values than those given.
        """
        found = [] if mismatches is None else mismatches
        whole = self.deepspeed_config if config is None else config
        for key, _ in list(leaves(whole)):
            section, last = node_of(whole, key)
            if section is not None:
                values.fill_or_compare(section, last, prefix + key, kwargs, found if must_match else None)
        if found and not prefix:
            lines = "".join(f"- {line}\n" for line in found)
            raise ConfigError(
                f'The DeepSpeed config contradicts the values given:\n{lines}Correct them there, or write `"auto"`.'
            )

    def set_mixed_precision(self, mixed_precision: str) -> None:
        """Fill the precision in the config: ``fp16`` and ``bf16``, each on or off.

        Raises:
            ConfigError: If the config has another precision already.
        """
        said = Said(mixed_precision, f"`mixed_precision={mixed_precision!r}`")
        self._learn(Facts(mixed_precision=said))

    def settle_precision(self, asked: str) -> str:
        """Fill the precision that the run was asked for, and return the one that then holds: the config's.

        Args:
            asked: ``no``, where nobody asks, leaves the choice to the config.

        Raises:
            ConfigError: If the config has another precision than was asked for.
        """
        self.set_mixed_precision(asked)
        found = next(
            (name for name in ("fp16", "bf16") if self.hf_ds_config.is_true(f"{name}.enabled")), None
        )
        return found or asked

    def default_layout(self, topology: Topology) -> MeshLayout:
        """Return how the ranks are arranged where no `ParallelismConfig` says it: by the ``autotp_size`` of the config.

        Raises:
            ConfigError: If that does not divide the number of processes.
        """
        num_ranks, size = topology.world_size, autotp_size(self.deepspeed_config)
        if size == 1:
            return MeshLayout.of_replicas(num_ranks)
        if num_ranks % size:
            raise ConfigError(
                f"`{AUTOTP_SIZE}` is {size} by {self.source}, which does not divide the {num_ranks} processes. Choose "
                "a size that does."
            )
        return MeshLayout(dp_shard=num_ranks // size, tp=size)

    def settle_layout(self, layout: MeshLayout) -> None:
        """Fill how many ranks share each layer.

        Raises:
            ConfigError: If the config has another number already.
        """
        self._learn(Facts(tp_size=Said(layout.tp, f"`ParallelismConfig(tp_size={layout.tp})`")))

    def set_moe_leaf_modules(self, model: nn.Module) -> None:
        """Let ZeRO 3 keep the mixture-of-experts layers of a model whole, where their classes were named.

        Raises:
            ConfigError: If the model has no module of a class that was named.
        """
        if not self.transformer_moe_cls_names:
            return
        names = values.names_of(self.transformer_moe_cls_names)
        found = {name: get_module_class_from_name(model, name) for name in names}
        missing = [name for name, kind in found.items() if kind is None]
        if missing:
            raise ConfigError(
                f"`transformer_moe_cls_names` names {', '.join(f'`{name}`' for name in missing)}, of which "
                f"`{type(model).__name__}` has no module."
            )
        from deepspeed.utils import set_z3_leaf_modules

        set_z3_leaf_modules(model, list(found.values()))

    def is_zero3_init_enabled(self) -> bool:
        """Tell whether transformers builds its models sharded from the start."""
        return bool(self.zero3_init_flag)

    @contextmanager
    def zero3_init_context_manager(self, enable: bool = False) -> Iterator[None]:
        """Let transformers build models sharded from the start in the block, or not; afterwards it is as before."""
        before = self.zero3_init_flag
        self.zero3_init_flag = enable
        self.set_deepspeed_weakref()
        try:
            yield
        finally:
            self.zero3_init_flag = before
            self.set_deepspeed_weakref()

    def set_deepspeed_weakref(self) -> None:
        """Show the config to transformers, which holds it weakly, if models are to be built sharded; else hide it."""
        if self.zero3_init_flag:
            self._announced = announce(self.deepspeed_config)
        else:
            self._announced = None
            withdraw()

    @property
    def selected(self) -> bool:
        """Whether ``prepare`` uses this plugin, where there are several."""
        return self._selected

    def select(self, _from_accelerator_state: bool = False) -> None:
        """Be the plugin that is used; called by `AcceleratorState.select_deepspeed_plugin` alone."""
        if not _from_accelerator_state:
            raise StateError(
                "A plugin is selected by its name: call `accelerator.state.select_deepspeed_plugin(name)`."
            )
        self._selected = True
        self.set_deepspeed_weakref()

    def _unselect(self) -> None:
        self._selected = False
        self._announced = None

    def _learn(self, said: Facts) -> None:
        """Take in what the run says, and fill it."""
        self.facts = said.over(self.facts)
        self._adopt(fill_said(self.deepspeed_config, said, source=self.source, origins=self.origins))

    def _adopt(self, filled: Filled) -> None:
        """Take over a filled config, in the dict that others may hold."""
        _warn(filled.notes)
        self._show(filled.config)
        self.origins = {key: by for key, by in filled.origins.items() if by != self.source}

    def _show(self, config: Mapping[str, Any]) -> None:
        """Let the dict that others may hold say what a config says."""
        self.deepspeed_config.clear()
        self.deepspeed_config.update(copy.deepcopy(dict(config)))
        self.hf_ds_config.set_stage_and_offload()

    def _read_back(self) -> None:
        """Let the fields say what the config says, which holds."""
        for name, key in values.KEYS.items():
            current = self.get_value(key)
            setattr(self, name, values.UNSAID[name] if current is None else current)

    def _is_zero3_init_wanted(self) -> bool:
        is_zero3 = bool(self.hf_ds_config.is_zero3())
        asked: Any = self.zero3_init_flag
        if asked is None:
            asked = environ.read("deepspeed_zero3_init")
        elif not isinstance(asked, bool):
            asked = values.parsed("deepspeed_zero3_init", "zero3_init_flag", asked)
        if asked and not is_zero3:
            warn_user(
                f"`zero3_init_flag` has no effect with ZeRO stage {self.zero_stage}: it is for stage 3. "
                "Leave it out, or set `zero_stage=3`.",
            )
        if asked is None:
            return is_zero3 and why_not("transformers") is None and why_not("deepspeed") is None
        return is_zero3 and bool(asked)


def _warn(notes: Iterable[str]) -> None:
    for note in notes:
        warn_user(f"{note} The first holds.")


def get_active_deepspeed_plugin(state: Any) -> DeepSpeedPlugin:
    """Return the DeepSpeed plugin that `prepare` uses.

    Args:
        state: The `AcceleratorState`.

    Raises:
        ConfigError: If the run does not use DeepSpeed.
    """
    plugin = state.deepspeed_plugin
    if plugin is None:
        raise ConfigError(
            "There is no DeepSpeed plugin. Pass `deepspeed_plugin` to `Accelerator`, or launch with `--use_deepspeed`."
        )
    found: DeepSpeedPlugin = plugin
    return found
