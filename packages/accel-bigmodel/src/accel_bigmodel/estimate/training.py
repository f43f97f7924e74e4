"""Bytes per process of training with Adam, by strategy."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from accel_state.errors import ConfigError, UnknownNameError


def estimate_training_usage(
    bytes: int,  # noqa: A002
    mixed_precision: str,
    msamp_config: str | None = None,
) -> dict[str, float]:
    """Return the bytes of a training step with Adam.

    Args:
        bytes: Size of the model in float32.
        mixed_precision: ``"float32"``, ``"float16"`` or ``"bfloat16"``. For other dtypes, which cannot be
            trained, every value is -1.
        msamp_config: Not used.

    Returns:
        ``model``, ``optimizer``, ``gradients``, and ``step``, the peak of all together.
    """
    if mixed_precision == "float32":
        return {"model": bytes, "optimizer": bytes * 2, "gradients": bytes, "step": bytes * 4}
    if mixed_precision in ("float16", "bfloat16"):
        return {"model": bytes, "optimizer": bytes * 2, "gradients": bytes * 1.5, "step": bytes * 2}
    return dict.fromkeys(("model", "optimizer", "gradients", "step"), -1)


@dataclass(frozen=True, slots=True)
class TrainingBytes:
    """Bytes of one process on its device, and on the host."""

    parameters: int
    gradients: int
    optimizer: int
    working: int
    host: int = 0

    @property
    def total(self) -> int:
        """The total on the device."""
        return self.parameters + self.gradients + self.optimizer + self.working

    def as_dict(self) -> dict[str, int]:
        """Return the fields, and the total on the device."""
        return {**asdict(self), "total": self.total}


def training_bytes(
    strategy: str, *, weights: int, trained: int, largest_layer: int, num_processes: int
) -> TrainingBytes:
    """Return the bytes of each process during training with Adam, activations excluded.

    Args:
        strategy: ``ddp``, ``fsdp``, ``zero1``, ``zero2``, ``zero3`` or ``offload`` (optimizer
            states on the host).
        weights: Bytes of parameters and buffers.
        trained: Bytes of parameters that get gradients.
        largest_layer: Bytes of the largest layer, which is gathered for its computation and updated with temporary
            memory of its size.
        num_processes: Number of processes that share the work.
    """
    if num_processes < 1:
        raise ConfigError(f"`num_processes` must be at least 1, not {num_processes}.")

    def share(size: int) -> int:
        return -(-size // num_processes)

    moments = 2 * trained
    if strategy == "ddp":
        # DDP copies the gradients into buckets for the all-reduce.
        buckets = trained if num_processes > 1 else 0
        return TrainingBytes(weights, trained + buckets, moments, largest_layer)
    if strategy == "zero1":
        return TrainingBytes(weights, trained, share(moments), largest_layer)
    if strategy == "zero2":
        return TrainingBytes(weights, share(trained), share(moments), 2 * largest_layer)
    if strategy in ("zero3", "fsdp"):
        # The current layer and the next one are gathered, and the gradient of one layer is unsharded.
        gathered = 3 * largest_layer if num_processes > 1 else largest_layer
        return TrainingBytes(share(weights), share(trained), share(moments), gathered)
    if strategy == "offload":
        return TrainingBytes(weights, trained, 0, largest_layer, host=share(moments + trained))
    raise UnknownNameError.of("strategy", strategy, ["ddp", "fsdp", "zero1", "zero2", "zero3", "offload"])
