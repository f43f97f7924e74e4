"""The Python on the pages of the documentation runs unchanged, from top to bottom."""

import re
from functools import partial

import preloaded
import pytest
from documented import PAGES, ROOT, blocks

from tools.harness.scripts import run_script

NEXT_SCRIPT = """
from accel.state import AcceleratorState, GradientState
AcceleratorState._reset_state()
GradientState._reset_state()
"""
"""Each block that builds an Accelerator stands for a script of its own."""
TESTED_BY_THEIR_PACKAGES = {"accel-checkpoint", "accel-ops", "accel-state"}


def script_of(page):
    """Return the blocks of a page as one script, each at its own line, so that tracebacks tell it."""
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in blocks(page, "python"):
        first = block.line - 1
        lines[first : first + block.text.count("\n")] = block.text.splitlines()
        if re.search(r"^\w+ = Accelerator\(", block.text, re.MULTILINE):
            lines[first - 1] = "; ".join(NEXT_SCRIPT.split("\n")[1:-1])
    return "\n".join(lines)


def name_of(page):
    """Return ``fsdp`` for a page of the documentation, ``accel-data`` for the README of a package, or ``README``."""
    return page.parent.name if page.name == "README.md" and page.parent != ROOT else page.stem


IN_ENGINES = {"deepspeed", "megatron"}
"""Pages whose code needs an engine that has a separate environment."""
WITH_CODE = {name_of(page): page for page in PAGES if blocks(page, "python")}
"""Pages with code that is run, by their names."""


ON_TWO_RANKS = (
    "context_parallel",
    "distributed_inference",
    "fsdp",
    "loop",
    "pipeline",
    "tensor_parallel",
)
RUNS = [
    *((name, 1) for name in WITH_CODE if name not in {*TESTED_BY_THEIR_PACKAGES, *IN_ENGINES}),
    *((name, 2) for name in ON_TWO_RANKS),
]


def run_code(folder, *, name, num_processes):
    script = folder / f"guide_{name.replace('-', '_')}.py"  # not the name of a package
    script.write_text(script_of(WITH_CODE[name]), encoding="utf-8")
    return run_script(script, num_processes=num_processes, cwd=folder, timeout_s=120, preload=preloaded.ACCEL)


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
    assert {"from_accelerate", "deepspeed", "fsdp", "loop"} <= set(WITH_CODE)
    assert len(blocks(WITH_CODE["loop"], "python")) > 5
