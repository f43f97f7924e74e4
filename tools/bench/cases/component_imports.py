"""Import time of the main names of each package, beyond the import of torch."""

from tools.bench.case import Case

IMPORTS = {
    "accel-state": "from accel_state import PartialState",
    "accel-ops": "from accel_ops import find_executable_batch_size, gather, reduce, set_seed",
    "accel-checkpoint": "from accel_checkpoint import CheckpointFolder",
    "accel-backends": "from accel_backends import Bundle, StrategyContext, select_precision, select_strategy",
    "accel-bigmodel": "from accel_bigmodel import "
    "init_empty_weights, load_checkpoint_and_dispatch, merge_fsdp_weights, save_model",
    "accel-data": "from accel_data import gather_for_metrics, prepare_data_loader",
    "accel-launch": "from accel_launch import main, notebook_launcher",
    "accel-trackers": "from accel_trackers import BackgroundLog, GeneralTracker, filter_trackers, start_trackers",
    "accel": "from accel import Accelerator",
}
# An import reads cached files and waits for nothing, so processor time varies less than elapsed time. It still
# grows several times on a busy machine: measure on an idle one.
# The import of torch leaves a collection of all its objects due, 70 ms that the next import would pay: run it before.
CLOCK = """
import gc
import time
import torch
gc.collect()
begun = time.process_time()
{statement}
print((time.process_time() - begun) * 1e3)
"""

case = Case(
    title="import the main names of a package, after `import torch`",
    unit="ms of the processor",
    variants={package: CLOCK.format(statement=statement) for package, statement in IMPORTS.items()},
    baseline="accel-state",
)
