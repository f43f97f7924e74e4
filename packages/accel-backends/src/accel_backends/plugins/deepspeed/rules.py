"""Which key of a DeepSpeed config is filled with what: one row per key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import AUTO, value_of
from accel_backends.plugins.deepspeed.facts import Facts, Said

Config = Mapping[str, Any]
Find = Callable[[Facts, Config], Said | None]

DEFAULT = "default"
"""Who says what nobody asked for."""


class Conflict(Enum):
    """What happens where the config says something else than the run."""

    REFUSED = "refused"
    CONFIG_WINS = "config wins"


@dataclass(frozen=True, slots=True)
class Rule:
    """One key: what fills it, and what else is done about it.

    Attributes:
        key: The key with its section.
        find: Returns what the run says of it, None where it says nothing. The config that it gets is filled as far as
            the rows above.
        conflict: What happens where the config has another value than one that was asked for.
        is_always_written: Whether a config without the key gets it, also by default.
        help: What could fill an ``auto``, for the message where nothing does.
        fallback: What the key becomes where the run says nothing of it, None for nothing.
    """

    key: str
    find: Find
    help: str = ""
    conflict: Conflict = Conflict.REFUSED
    is_always_written: bool = False
    fallback: Said | None = None


def _of(name: str) -> Find:
    """Return what finds the fact of that name."""
    return lambda facts, config: getattr(facts, name)


def _micro_batch_size(facts: Facts, config: Config) -> Said | None:
    if facts.micro_batch_sizes is not None:
        sizes, by, is_default = facts.micro_batch_sizes
        current = value_of(config, "train_micro_batch_size_per_gpu")
        chosen = min(sizes) if facts.is_train_batch_min else max(sizes)
        return Said(current if current in sizes else chosen, by, is_default)
    whole = value_of(config, "train_batch_size")
    steps = value_of(config, "gradient_accumulation_steps")
    if facts.num_data_ranks is None or not (is_count(whole) and is_count(steps)):
        return None
    size, rest = divmod(whole, steps * facts.num_data_ranks.value)
    return None if rest or not size else Said(size, "`train_batch_size`", is_default=True)


def _accumulation(facts: Facts, config: Config) -> Said | None:
    said = facts.gradient_accumulation_steps
    # One step is what every run has where nobody accumulates.
    return said if said is None or said.value != 1 else said._replace(is_default=True)


def _train_batch_size(facts: Facts, config: Config) -> Said | None:
    micro = value_of(config, "train_micro_batch_size_per_gpu")
    steps = value_of(config, "gradient_accumulation_steps")
    if facts.num_data_ranks is None or not (is_count(micro) and is_count(steps)):
        return None
    ranks = facts.num_data_ranks.value
    return Said(
        micro * steps * ranks,
        f"{micro} (`train_micro_batch_size_per_gpu`) × {steps} (`gradient_accumulation_steps`) × {ranks} (data ranks)",
    )


def autotp_size(config: Config) -> int:
    """Return how many ranks share each layer by the config, 1 where it does not say it."""
    size = value_of(config, AUTOTP_SIZE)
    return size if is_count(size) else 1


def _autotp_size(facts: Facts, config: Config) -> Said | None:
    said = facts.tp_size
    is_off = said is not None and said.value == 1 and value_of(config, AUTOTP_SIZE) in (None, 0)
    return None if is_off else said


def _whole_logits(facts: Facts, config: Config) -> Said | None:
    return _default(False, "logits of the whole vocabulary") if autotp_size(config) > 1 else None


def _parameters_apart(facts: Facts, config: Config) -> Said | None:
    if value_of(config, f"{_ZERO}.offload_optimizer.device") != "nvme":
        return None
    return Said(
        1, "accel: DeepSpeed reads gradients of several parameters from NVMe wrongly", is_default=True
    )


def _enabled(precision: str) -> Find:
    def find(facts: Facts, config: Config) -> Said | None:
        said = facts.mixed_precision
        if said is None:
            return None
        if value_of(config, "torch_autocast.enabled") is True:  # then parameters stay in fp32
            return _default(False, "`torch_autocast`")
        # `no` is what every run has where nobody asks; the config's own precision holds then, as beside 8 bits.
        return Said(said.value == precision, said.by, said.is_default or said.value in ("no", "fp8"))

    return find


def _hidden(compute: Callable[[int], int]) -> Find:
    def find(facts: Facts, config: Config) -> Said | None:
        if facts.hidden_sizes is None:
            return None
        size = max(facts.hidden_sizes.value)
        return Said(compute(size), f"hidden size {size} of {facts.hidden_sizes.by}", is_default=True)

    return find


def _unknown(facts: Facts, config: Config) -> Said | None:
    return None


def _auto_cast(facts: Facts, config: Config) -> Said | None:
    said = facts.mixed_precision
    is_off = "fp16" in config or value_of(config, "torch_autocast.enabled") is True
    is_wanted = said is not None and said.value == "fp16" and not is_off
    return Said(True, said.by) if said is not None and is_wanted else None


def _warmup_max_lr(facts: Facts, config: Config) -> Said | None:
    if facts.learning_rate is not None:
        return facts.learning_rate
    rate = value_of(config, "optimizer.params.lr")
    return None if rate in (None, AUTO) else Said(rate, "`optimizer.params.lr`")


def _total_num_steps(facts: Facts, config: Config) -> Said | None:
    said = facts.total_num_steps
    if said is None or said.value is None:
        return None
    ranks = facts.num_schedule_ranks
    by = said.by if ranks == 1 else f"{said.by}, {said.value} steps by {ranks} ranks"
    return Said(math.ceil(said.value / ranks), by, said.is_default)


def is_count(value: object) -> bool:
    """Tell whether a value is a whole number from 1 up."""
    return type(value) is int and value >= 1


AUTOTP_SIZE = "tensor_parallel.autotp_size"
"""The key that says how many ranks share each layer."""

_MODEL = "a model whose config has `hidden_size` or `hidden_sizes`"
_LOADER = "a loader with a batch size in `prepare`, or a number"
_SIZES = "the number of ranks, `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps`"
_OPTIMIZER = "a `DummyOptim` in `prepare`"
_SCHEDULER = "a `DummyScheduler` in `prepare`"
_KEEP = Conflict.CONFIG_WINS
_ZERO = "zero_optimization"
_GATHERS_ON_SAVE = "stage3_gather_16bit_weights_on_model_save"
_MAXIMUM = Said(1_000_000_000, "default of DeepSpeed", is_default=True)


def _default(value: Any, meaning: str = "") -> Said:
    return Said(value, f"{DEFAULT}: {meaning}" if meaning else DEFAULT, is_default=True)


# In this order: rows read what those above have written.
# fmt: off
RULES: tuple[Rule, ...] = (
    Rule(f"{_ZERO}.stage", _of("zero_stage"), "`zero_stage`"),
    Rule(f"{_ZERO}.offload_optimizer.device", _of("offload_optimizer_device"), "`offload_optimizer_device`"),
    Rule(f"{_ZERO}.offload_optimizer.nvme_path", _of("offload_optimizer_nvme_path"), "`offload_optimizer_nvme_path`"),
    Rule(f"{_ZERO}.sub_group_size", _parameters_apart, is_always_written=True),
    Rule(f"{_ZERO}.offload_param.device", _of("offload_param_device"), "`offload_param_device`"),
    Rule(f"{_ZERO}.offload_param.nvme_path", _of("offload_param_nvme_path"), "`offload_param_nvme_path`"),
    Rule(f"{_ZERO}.{_GATHERS_ON_SAVE}", _of("zero3_save_16bit_model"), "`zero3_save_16bit_model`"),
    Rule("gradient_accumulation_steps", _accumulation, is_always_written=True, fallback=_default(1)),
    Rule(AUTOTP_SIZE, _autotp_size, "`ParallelismConfig(tp_size=...)`"),
    # Left out, DeepSpeed cuts the logits of some models, and a loss computed from them would be another one.
    Rule("tensor_parallel.vocab_parallel_lm_head", _whole_logits, is_always_written=True),
    # Left out, it would be 1.0 by DeepSpeed's own default.
    Rule("gradient_clipping", _of("gradient_clipping"), is_always_written=True, fallback=_default(0.0, "off")),
    Rule("train_micro_batch_size_per_gpu", _micro_batch_size, _LOADER, _KEEP, is_always_written=True),
    Rule("train_batch_size", _train_batch_size, _SIZES, is_always_written=True),
    Rule("fp16.auto_cast", _auto_cast),
    Rule("fp16.enabled", _enabled("fp16"), is_always_written=True, fallback=_default(False)),
    Rule("bf16.enabled", _enabled("bf16"), is_always_written=True, fallback=_default(False)),
    Rule(f"{_ZERO}.reduce_bucket_size", _hidden(lambda size: size * size), _MODEL),
    Rule(f"{_ZERO}.stage3_prefetch_bucket_size", _hidden(lambda size: int(0.9 * size * size)), _MODEL),
    Rule(f"{_ZERO}.stage3_param_persistence_threshold", _hidden(lambda size: 10 * size), _MODEL),
    Rule(f"{_ZERO}.stage3_max_live_parameters", _unknown, fallback=_MAXIMUM),
    Rule(f"{_ZERO}.stage3_max_reuse_distance", _unknown, fallback=_MAXIMUM),
    Rule("optimizer.params.lr", _of("learning_rate"), _OPTIMIZER, _KEEP),
    Rule("optimizer.params.weight_decay", _of("weight_decay"), _OPTIMIZER, _KEEP),
    Rule("optimizer.params.betas", _of("betas"), _OPTIMIZER, _KEEP),
    Rule("optimizer.params.eps", _of("eps"), _OPTIMIZER, _KEEP),
    Rule("scheduler.params.warmup_min_lr", _unknown, fallback=_default(0)),
    Rule("scheduler.params.warmup_max_lr", _warmup_max_lr, _OPTIMIZER, _KEEP),
    Rule("scheduler.params.warmup_num_steps", _of("warmup_num_steps"), _SCHEDULER, _KEEP),
    Rule("scheduler.params.total_num_steps", _total_num_steps, _SCHEDULER, _KEEP),
    Rule("steps_per_print", _unknown, is_always_written=True, fallback=_default(math.inf, "never")),
)
# fmt: on

# Sections in which `auto` is a word of DeepSpeed's own.
LEFT_TO_DEEPSPEED = (
    "autotuning.",
    "data_types.keep_in_fp32_modules",
    "expert_parallel.",
    "pipeline.",
    "zero_optimization.zenflow.",
)
