"""Check the table of FSDP and DeepSpeed settings against the plugins; ``--update`` rewrites it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel_backends.plugins.deepspeed.values import setting_of
from accel_state.environment.settings import SETTINGS
from tools.checks.tables import if_old, run_check, with_rows

PAGE = Path("docs") / "reference" / "sharding_settings.md"
BEGIN = "| | FSDP | DeepSpeed | |\n|-|-|-|-|\n"
"""The head of the table, which an empty line ends."""

_OTHER_NAMES = {
    "cpu_offload": "fsdp_offload_params",
    "fsdp_version": "fsdp_version",
    "hf_ds_config": "deepspeed_config_file",
    "transformer_cls_names_to_wrap": "fsdp_transformer_layer_cls_to_wrap",
    "transformer_moe_cls_names": "deepspeed_moe_layer_cls_names",
    "zero3_init_flag": "deepspeed_zero3_init",
}
"""Settings of fields that have another name than theirs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that can be set.

    Attributes:
        what: Description.
        fsdp: Fields of `FullyShardedDataParallelPlugin`.
        deepspeed: Fields of `DeepSpeedPlugin`.
        key: Keys of a DeepSpeed config that have no field.
        note: The difference.
    """

    what: str
    fsdp: Sequence[str] = ()
    deepspeed: Sequence[str] = ()
    key: Sequence[str] = ()
    note: str = ""


ROWS = (
    Row(
        "what is sharded",
        ("sharding_strategy", "reshard_after_forward"),
        ("zero_stage",),
        note="the strategies match [as listed](../scale/deepspeed.md#fsdp-or-deepspeed)",
    ),
    Row("config file", deepspeed=("hf_ds_config",), note="any DeepSpeed key"),
    Row("version", ("fsdp_version",)),
    Row(
        "CPU offload",
        ("cpu_offload",),
        ("offload_param_device", "offload_optimizer_device"),
        note="FSDP: everything; DeepSpeed: either one, with its own optimizers",
    ),
    Row("NVMe offload", deepspeed=("offload_param_nvme_path", "offload_optimizer_nvme_path")),
    Row(
        "FSDP units",
        ("auto_wrap_policy", "transformer_cls_names_to_wrap", "min_num_params"),
        note="DeepSpeed gathers modules as they are used",
    ),
    Row(
        "modules that are not sharded",
        ("ignored_modules",),
        ("transformer_moe_cls_names",),
        key=("zero_optimization.stage3_param_persistence_threshold",),
        note="DeepSpeed: gathered as a whole, and parameters below a size",
    ),
    Row(
        "prefetching",
        ("forward_prefetch", "backward_prefetch", "num_forward_prefetch", "num_backward_prefetch"),
        key=("zero_optimization.stage3_prefetch_bucket_size",),
    ),
    Row(
        "limit of gathered parameters",
        ("limit_all_gathers",),
        key=("zero_optimization.stage3_max_live_parameters", "zero_optimization.stage3_max_reuse_distance"),
    ),
    Row(
        "dtypes",
        ("mixed_precision_policy", "reduce_dtype"),
        key=("bf16", "fp16", "communication_data_type"),
        note="both follow `mixed_precision` of `Accelerator`",
    ),
    Row(
        "initialization of large models",
        ("cpu_ram_efficient_loading", "load_weights_from", "param_init_fn"),
        ("zero3_init_flag",),
    ),
    Row("broadcast of initial weights", ("sync_module_states",), note="always done, in both"),
    Row(
        "checkpoints",
        ("state_dict_type", "state_dict_config", "optim_state_dict_config"),
        ("zero3_save_16bit_model",),
        note="`save_state(checkpoint_format=…)` chooses in both; `save_model` needs no setting",
    ),
    Row(
        "activation checkpointing",
        ("activation_checkpointing", "activation_checkpointing_offload", "selective_checkpointing"),
        note="DeepSpeed: `model.gradient_checkpointing_enable()` of transformers",
    ),
    Row(
        "XLA devices of one process",
        ("xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"),
        note="FSDP only; see [other devices](../launch/other_devices.md#tpus)",
    ),
    Row("original parameters", ("use_orig_params",), note="always with DeepSpeed and FSDP 2"),
    Row("parallel plan", ("parallel_plan",)),
    Row(
        "accumulation",
        deepspeed=("gradient_accumulation_steps",),
        note="both follow `gradient_accumulation_steps` of `Accelerator`",
    ),
    Row("clipping", deepspeed=("gradient_clipping",), note="`clip_grad_norm_` clips in both"),
    Row("batch size", deepspeed=("is_train_batch_min",), note="DeepSpeed needs it"),
    Row("MS-AMP", deepspeed=("enable_msamp", "msamp_opt_level"), note="not offered"),
)


def with_table(page: str) -> str:
    """Return the page with the table as the plugins have it now."""
    return with_rows(page, head=BEGIN, rows=_lines(), page=PAGE)


def problems(root: Path) -> list[str]:
    """Return the command that updates the page if it is not current."""
    return if_old(root, PAGE, with_table, what="settings", check="settings_table")


def _lines() -> Iterator[str]:
    for row in ROWS:
        fsdp = [_with_flag(name, f"fsdp_{name}") for name in row.fsdp]
        deepspeed = [_with_flag(name, setting_of(name)) for name in row.deepspeed]
        deepspeed += [f"`{key}` (key)" for key in row.key]
        yield f"| {row.what} | {', '.join(fsdp)} | {', '.join(deepspeed)} | {row.note} |\n"


def _with_flag(field: str, setting: str) -> str:
    name = _OTHER_NAMES.get(field, setting)
    flag = SETTINGS[name].flag if name in SETTINGS else None
    return f"`{field}`" if flag is None else f"`{field}` (`{flag}`)"


if __name__ == "__main__":
    sys.exit(run_check(PAGE, with_table, problems))
