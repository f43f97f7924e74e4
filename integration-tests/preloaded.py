"""What forked scripts find imported next to torch, for tests that are not about it."""

ACCEL = (
    "accel.accelerator", "accel.utils", "accel_backends.strategies.ddp", "torch.distributed.tensor.debug",
)  # fmt: skip
SAVING = (
    *ACCEL,
    "accel.checkpoints.items",
    "accel.checkpoints.loading",
    "accel.checkpoints.numbered",
    "accel_backends.checkpoint_formats.full",
    "accel_backends.strategies.single",
    "accel_checkpoint.listing",
    "accel_checkpoint.random_states",
    "accel_checkpoint.saving.saver",
    "pytest",
    "tqdm.auto",
)
EXAMPLES = (
    *ACCEL,
    "matplotlib.pyplot",
    "sklearn.datasets",
    "sklearn.metrics",
    "sklearn.model_selection",
    "tensorboard",
    "torchao.float8",
)
ADAPTERS = (*ACCEL, "peft", "transformers.models.llama")
