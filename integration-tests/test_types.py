"""Type checkers see the names behind `accel.utils` and other module paths, and report nothing in the documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from documented_scripts import problems, write_scripts

ROOT = Path(__file__).parent.parent

SCRIPT = """
from typing import cast

import accel
import accel.utils
from accel import Accelerator, PartialState, load_checkpoint_and_dispatch, skip_first_batches
from accel.accelerator import Accelerator as SameAccelerator, GradientState, get_logger
from accel.big_modeling import init_empty_weights
from accel.commands.config import default_config_file, load_config_from_file, main
from accel.data_loader import prepare_data_loader
from accel.hooks import ModelHook, add_hook_to_module
from accel.local_sgd import DistributedType, LocalSGD
from accel.state import AcceleratorState
from accel.test_utils import RegressionModel
from accel.tracking import GeneralTracker
from accel.utils import ProjectConfiguration, gather_object, merge_dicts, set_seed, tqdm
from accel.utils.dataclasses import DeepSpeedPlugin, MegatronLMPlugin, TorchContextParallelConfig
from accel.utils.modeling import infer_auto_device_map
from accel.utils.operations import send_to_device
from accel_state import PipelineParallelConfig
from torch.optim import AdamW
from torch.utils.data import DataLoader
def takes_adamw(optimizer: AdamW) -> None: ...
"""
TYPES = {
    "Accelerator().device": "device",
    "SameAccelerator().process_index": "int",
    "skip_first_batches": "dataloader: Loader",
    "load_checkpoint_and_dispatch": "Module",
    "GradientState()": "GradientState",
    "get_logger('here')": "MultiProcessAdapter",
    "default_config_file": "str",
    "prepare_data_loader": "DataLoader[Any]",
    "DistributedType.NO": "DistributedType",
    "PartialState().is_main_process": "bool",
    "ProjectConfiguration().total_limit": "int | None",
    "set_seed": "device_specific: bool",
    "DeepSpeedPlugin()": "DeepSpeedPlugin",
    "infer_auto_device_map": "dict[str, int | str]",
    "accel.utils.operations.find_batch_size": "-> int",
    "accel.utils.tqdm": "main_process_only: bool",
    "Accelerator().unwrap_model(RegressionModel())": "RegressionModel",
    "Accelerator().gather({'a': 1})": "dict[str, int]",
    "Accelerator().on_main_process(merge_dicts)({}, {})": "MutableMapping[Any, Any] | None",
    "Accelerator().prepare(cast(DataLoader[int], 0)).set_epoch": "epoch: int",
    "Accelerator().prepare(RegressionModel(), cast(AdamW, 0))[1].step_was_skipped": "bool",
    "takes_adamw(Accelerator().prepare_optimizer(cast(AdamW, 0)))": "None",
}
WRONG = (
    "from accel.utils import set_sed",
    "from accel.accelerator import GradientStat",
    "from accel.data_loader import prepare_loader",
    "accel.utils.operations.gathr",
    "accel.state.PartialStat",
    "Accelerator(mixed_precision='bf17')",
    "DeepSpeedPlugin(offload_param_device='gpu')",
    "TorchContextParallelConfig(cp_comm_strategy='ring')",
    "PipelineParallelConfig(schedule='1b1f')",
    "MegatronLMPlugin(lr_decay_style='cosin')",
    "Accelerator().on_main_process(merge_dicts)({}, 1, 2)",
)


def lines_by_number(output: str) -> dict[int, str]:
    """Return what a checker reports on `script.py`, by line."""
    found: dict[int, str] = {}
    for number, text in re.findall(r"script\.py:(\d+):(.*)", output):
        found[int(number)] = found.get(int(number), "") + text
    return found


def write_script(folder: Path) -> Path:
    script = folder / "script.py"
    lines = [*SCRIPT.strip().splitlines(), *(f"reveal_type({expression})" for expression in TYPES)]
    script.write_text("\n".join([*lines, *WRONG, ""]))
    return script


def check_names(output: str) -> None:
    """Assert that a checker reports each wrong line of the script and no other, and the real types."""
    reports = lines_by_number(output)
    first_type = len(SCRIPT.strip().splitlines()) + 1
    first_wrong = first_type + len(TYPES)
    assert not [line for line in range(1, first_wrong) if "error" in reports.get(line, "")], output
    for number, (expression, expected) in enumerate(TYPES.items(), start=first_type):
        assert expected in reports.get(number, ""), (expression, output)
    for number, line in enumerate(WRONG, start=first_wrong):
        assert "error" in reports.get(number, ""), (line, output)


MYPY = """
[mypy]
allow_redefinition = true
disable_error_code = has-type, no-redef, var-annotated
[mypy-accelerate.*,datasets.*,deepspeed.*,diffusers.*,matplotlib.*,peft.*,sklearn.*,tensorboard.*,torchao.*,torchdata.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-my_package.*,transformers.*,wandb.*]
follow_imports = skip
ignore_missing_imports = true
"""
PYRIGHT = {
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
    "reportPossiblyUnboundVariable": False,
    "reportRedeclaration": False,
}
"""Left out: what a page gives a second meaning, packages that are not installed, and loops that may have no batch."""


def run(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)  # without its cache, mypy reads all of torch
def test_mypy_sees_the_names_and_finds_nothing_in_the_documentation(tmp_path):
    pages, script = write_scripts(tmp_path), write_script(tmp_path)
    config = tmp_path / "mypy.ini"
    config.write_text(MYPY)
    cache = ROOT / ".mypy_cache" / "pages"
    mypy = [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", cache]
    output = run([*mypy, script.name, *pages], tmp_path)
    check_names(output)
    assert not problems(output, pages), "\n".join(problems(output, pages))


@pytest.mark.engine("pyright")
@pytest.mark.timeout(600)
def test_pyright_sees_the_names_and_finds_nothing_in_the_documentation(tmp_path):
    pages = write_scripts(tmp_path)
    write_script(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    output = run([sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", tmp_path], tmp_path)
    check_names(output)
    assert not problems(output, pages), "\n".join(problems(output, pages))
