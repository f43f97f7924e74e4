"""Source shared by the DeepSpeed cases, and their obstacle if DeepSpeed is missing."""

from __future__ import annotations

NO_DEEPSPEED = """
from importlib.util import find_spec
print("" if find_spec("deepspeed") else "DeepSpeed is not installed here: pip install deepspeed ninja")
"""

SETTING = """
import os, sys
os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
os.environ.pop("ACCELERATE_USE_CPU", None)  # with it, Accelerate would not use DeepSpeed
kept = os.dup(1)
os.dup2(2, 1)  # DeepSpeed prints and logs; the last line must be the number
sys.stdout = os.fdopen(kept, "w") if os.environ.get("RANK", "0") == "0" else open(os.devnull, "w")
def config():
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": STAGE, "stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True
        },
    }
"""
"""What follows `STAGE = …` and, for two ranks, `TWO_RANKS`; the config has what Accelerate needs to save a model."""

RAW = """
import deepspeed
def engine_of(model, optimizer):
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(), dist_init_required=False)
    return engine
"""


def accelerator_of(package: str) -> str:
    """Return source that builds the ``Accelerator`` of ``package`` with a plugin."""
    first = {"accel": "cpu=True, ", "accelerate": ""}[package]
    # With `zero3_init_flag` Accelerate needs transformers.
    return f"""
from {package} import Accelerator, DeepSpeedPlugin
plugin = DeepSpeedPlugin(hf_ds_config=config(), zero3_init_flag=False)
accelerator = Accelerator({first}deepspeed_plugin=plugin)
"""
