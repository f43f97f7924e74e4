"""What forked scripts find imported next to torch, and how they end, for tests that are about neither."""

import json
import os
import sys

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


def run_with_options(body):
    """Call ``body`` with the options that the script got as JSON, and end: taking torch apart takes half a second."""
    code = 0
    try:
        body(**json.loads(sys.argv[1]))
    except SystemExit as leaving:
        code = leaving.code
    sys.stdout.flush()
    os._exit(code)
