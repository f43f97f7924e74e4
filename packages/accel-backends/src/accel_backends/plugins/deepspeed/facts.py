"""What is known of a run when a DeepSpeed config is filled, and who said it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple


class Said(NamedTuple):
    """A value, and who said it.

    ``by`` completes the sentence "the value is … by": an argument, a variable, a flag, the loaders, the model. With
    ``is_default`` nobody asked for the value: it fills an ``auto``, but contradicts nothing.
    """

    value: Any
    by: str
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a run knows beside its DeepSpeed config; None is not known (yet).

    Attributes:
        num_data_ranks: Ranks that read different samples: all, divided by those that share each sequence or layer.
        tp_size: Ranks that share each layer.
        micro_batch_sizes: Samples per rank and batch, a tuple with one number for each loader.
        is_train_batch_min: Whether the smallest of these counts, otherwise the largest.
        gradient_accumulation_steps: Batches per optimizer step.
        gradient_clipping: The norm to clip to; 0.0 is off.
        mixed_precision: ``no``, ``fp16`` or ``bf16``.
        zero_stage: What ZeRO shards, 0 to 3.
        offload_optimizer_device: Where optimizer states are kept: ``none``, ``cpu``, ``nvme``.
        offload_optimizer_nvme_path: The folder for that.
        offload_param_device: Where parameters are kept.
        offload_param_nvme_path: The folder for that.
        zero3_save_16bit_model: Whether DeepSpeed gathers the 16-bit weights in its own save.
        hidden_sizes: A tuple with the hidden size of the model, or those of its parts.
        learning_rate: Of `DummyOptim`.
        weight_decay: Of `DummyOptim`.
        betas: Of `DummyOptim`.
        eps: Of `DummyOptim`.
        warmup_num_steps: Of `DummyScheduler`.
        total_num_steps: Of `DummyScheduler`, as it was passed there.
        num_schedule_ranks: How many of these steps one optimizer step stands for.
        launcher_fields: Keys of the launcher's config file that say what a DeepSpeed config file says alone.
    """

    num_data_ranks: Said | None = None
    tp_size: Said | None = None
    micro_batch_sizes: Said | None = None
    is_train_batch_min: bool = True
    gradient_accumulation_steps: Said | None = None
    gradient_clipping: Said | None = None
    mixed_precision: Said | None = None
    zero_stage: Said | None = None
    offload_optimizer_device: Said | None = None
    offload_optimizer_nvme_path: Said | None = None
    offload_param_device: Said | None = None
    offload_param_nvme_path: Said | None = None
    zero3_save_16bit_model: Said | None = None
    hidden_sizes: Said | None = None
    learning_rate: Said | None = None
    weight_decay: Said | None = None
    betas: Said | None = None
    eps: Said | None = None
    warmup_num_steps: Said | None = None
    total_num_steps: Said | None = None
    num_schedule_ranks: int = 1
    launcher_fields: tuple[str, ...] = ()

    def over(self, other: Facts) -> Facts:
        """Return these facts, with those of ``other`` where they are not known here."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return replace(other, **{field.name: value for field, value in values if value != field.default})
