"""Type checkers see the names behind `accel.utils` and other module paths, and report nothing in the documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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
from accel.utils.dataclasses import DeepSpeedPlugin
from accel.utils.modeling import infer_auto_device_map
from accel.utils.operations import send_to_device
from torch.utils.data import DataLoader
"""
TYPES = {
    "Accelerator().device": "device",
    "SameAccelerator().process_index": "int",
    "skip_first_batches": "DataLoader",
    "load_checkpoint_and_dispatch": "Module",
    "GradientState()": "GradientState",
    "get_logger('here')": "MultiProcessAdapter",
    "default_config_file": "str",
    "main": "int",
    "prepare_data_loader": "DataLoader[Any]",
    "DistributedType.NO": "DistributedType",
    "LocalSGD": "LocalSGD",
    "AcceleratorState()": "AcceleratorState",
    "PartialState().is_main_process": "bool",
    "ProjectConfiguration().total_limit": "int | None",
    "set_seed": "device_specific: bool",
    "DeepSpeedPlugin()": "DeepSpeedPlugin",
    "infer_auto_device_map": "dict[str, int | str]",
    "accel.utils.operations.find_batch_size": "-> int",
    "accel.state.PartialState()": "PartialState",
    "accel.utils.tqdm": "main_process_only: bool",
    "Accelerator().unwrap_model(RegressionModel())": "RegressionModel",
    "Accelerator().gather({'a': 1})": "dict[str, int]",
    "Accelerator().on_main_process(merge_dicts)({}, {})": "MutableMapping[Any, Any] | None",
    "Accelerator().prepare(cast(DataLoader[int], 0)).set_epoch": "epoch: int",
}
WRONG = (
    "from accel.utils import set_sed",
    "from accel.accelerator import GradientStat",
    "from accel.data_loader import prepare_loader",
    "accel.utils.operations.gathr",
    "accel.state.PartialStat",
    "Accelerator(mixed_precision='bf17')",
    "Accelerator().on_main_process(merge_dicts)({}, 1, 2)",
)


def lines_by_number(output: str) -> dict[int, str]:
    """Return what a checker reports on `script.py`, by line."""
    found: dict[int, str] = {}
    for number, text in re.findall(r"script\.py:(\d+):(.*)", output):
        found[int(number)] = found.get(int(number), "") + text
    return found


def check(command: list[str], folder: Path) -> None:
    """Run a type checker on a script: no error but on each wrong name, and the types are the real ones."""
    lines = [*SCRIPT.strip().splitlines(), *(f"reveal_type({expression})" for expression in TYPES)]
    script = folder / "script.py"
    script.write_text("\n".join([*lines, *WRONG, ""]))
    done = subprocess.run([*command, script], cwd=ROOT, capture_output=True, text=True, check=False)
    reports = lines_by_number(done.stdout)
    first_type, first_wrong = len(lines) - len(TYPES) + 1, len(lines) + 1
    problems = [reports[number] for number in range(1, first_wrong) if "error" in reports.get(number, "")]
    assert not problems, done.stdout + done.stderr
    for number, (expression, expected) in enumerate(TYPES.items(), start=first_type):
        assert expected in reports.get(number, ""), (expression, done.stdout + done.stderr)
    for number, line in enumerate(WRONG, start=first_wrong):
        assert "error" in reports.get(number, ""), (line, done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(600)  # without its cache, mypy reads all of torch
def test_mypy_sees_the_names(tmp_path):
    check([sys.executable, "-m", "mypy", "--config-file", "pyproject.toml"], tmp_path)


@pytest.mark.engine("pyright")
def test_pyright_sees_the_names(tmp_path):
    check([sys.executable, "-m", "pyright", "--pythonpath", sys.executable], tmp_path)


PAGES_WITH_MYPY = """
[mypy]
allow_redefinition = true
disable_error_code = no-redef
[mypy-accelerate.*,datasets.*,deepspeed.*,diffusers.*,matplotlib.*,peft.*,sklearn.*,tensorboard.*,torchao.*,torchdata.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-my_package.*,transformers.*,wandb.*]
follow_imports = skip
ignore_missing_imports = true
"""
PAGES_WITH_PYRIGHT = {
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
    "reportPossiblyUnboundVariable": False,
    "reportRedeclaration": False,
}
"""Left out: what a page gives a second meaning, packages that are not installed, and loops that may have no batch."""


@pytest.mark.slow
@pytest.mark.timeout(1200)  # without its cache, mypy reads all of torch
def test_mypy_finds_nothing_in_the_documentation(tmp_path):
    scripts = write_scripts(tmp_path)
    config = tmp_path / "mypy.ini"
    config.write_text(PAGES_WITH_MYPY)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        config,
        "--cache-dir",
        ROOT / ".mypy_cache/pages",
    ]
    done = subprocess.run([*command, *scripts], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not problems(done.stdout, scripts), "\n".join(problems(done.stdout, scripts))


@pytest.mark.engine("pyright")
@pytest.mark.timeout(600)
def test_pyright_finds_nothing_in_the_documentation(tmp_path):
    scripts = write_scripts(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PAGES_WITH_PYRIGHT))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not problems(done.stdout, scripts), "\n".join(problems(done.stdout, scripts))
