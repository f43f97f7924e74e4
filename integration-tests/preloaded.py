"""What forked scripts find imported next to torch, for tests that are not about the start of a script."""

ACCEL = ("accel.accelerator", "accel.utils")
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
