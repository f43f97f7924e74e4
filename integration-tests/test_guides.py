"""The Python on the pages under docs/guides runs as it stands, from top to bottom."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_state.testing import run_script

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NEXT_SCRIPT = """
from accel.state import AcceleratorState, GradientState
AcceleratorState._reset_state()
GradientState._reset_state()
"""
"""Each block that builds an Accelerator stands for a script of its own."""


def script_of(page):
    """Return the blocks of a page as one script, each at its own line, so that tracebacks tell it."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * len(text.splitlines())
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines[first : first + block[1].count("\n")] = block[1].splitlines()
        if re.search(r"^\w+ = Accelerator\(", block[1], re.MULTILINE):
            lines[first - 1] = "; ".join(NEXT_SCRIPT.split("\n")[1:-1])
    return "\n".join(lines)


PAGES = sorted(page.stem for page in GUIDES.glob("*.md") if BLOCK.search(page.read_text(encoding="utf-8")))
"""Those with code that is run."""


RUNS = [
    *((name, 1) for name in PAGES if name != "deepspeed"),
    *((name, 2) for name in ("distributed_inference", "parallelism", "sharded", "training_loop")),
]


def run_code(folder, *, name, num_processes):
    script = folder / f"guide_{name}.py"  # not the name of a package
    script.write_text(script_of(GUIDES / f"{name}.md"), encoding="utf-8")
    return run_script(script, num_processes=num_processes, cwd=folder, timeout_s=120)


@pytest.mark.parametrize(
    "outcome",
    [partial(run_code, name=name, num_processes=num) for name, num in RUNS],
    ids=[f"{name}-{num}" for name, num in RUNS],
    indirect=True,
)
def test_the_code_of_a_guide_runs(outcome):
    done = outcome
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr


@pytest.mark.engine("deepspeed")
def test_the_code_of_the_guide_to_deepspeed_runs(tmp_path):
    done = run_code(tmp_path, name="deepspeed", num_processes=2)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_have_code():
    assert {"coming_from_accelerate", "deepspeed", "sharded", "training_loop"} <= set(PAGES)
    assert len(BLOCK.findall((GUIDES / "training_loop.md").read_text(encoding="utf-8"))) > 10


COMMAND = re.compile(r"^accel launch ((?:.*\\\n)*.*)$", re.MULTILINE)


@pytest.mark.parametrize(
    "words", COMMAND.findall((GUIDES / "ray_and_kubernetes.md").read_text(encoding="utf-8"))
)
def test_launches_on_ray_and_kubernetes_can_be_planned(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["launch", "--dry-run", *shlex.split(words.replace("\\\n", " "))]) == 0
    assert capsys.readouterr().err == ""
