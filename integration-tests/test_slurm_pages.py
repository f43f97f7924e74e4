"""What the pages of the documentation say of SLURM is run on a real cluster, which is smaller than theirs."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import pytest
from documented import DOCS, ROOT, blocks, commands, with_replacements

pytestmark = pytest.mark.engine("slurm")
GUIDE = DOCS / "launch" / "slurm.md"
SMALLER = {
    "--nodes=4": "--nodes=2",
    "--gpus-per-node=8": "--gpus-per-node=2",
    "--ntasks-per-node=8": "--ntasks-per-node=2",
    "--num_machines 4": "--num_machines 2",
    "--num_processes 32": "--num_processes 4",
    "--num_processes 16": "--num_processes 2",
}
"""What is changed in the text of the guide: the cluster has two nodes, each with two cores and two GPUs."""
TRAIN = """
import os, sys
import torch
from accel import Accelerator

accelerator = Accelerator(cpu=True)
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
assert ranks == list(range(accelerator.num_processes))
told = f"rank {accelerator.process_index} of {len(ranks)} on {os.environ['SLURMD_NODENAME']}"
print(f"{told}, {os.environ.get('SLURM_GPUS_ON_NODE', 'no')} GPUs, arguments {sys.argv[1:]}", flush=True)
accelerator.end_training()
"""


@dataclass(frozen=True)
class Command:
    """What a reader types, or the batch script that the reader hands to SLURM, for the small cluster."""

    line: int
    text: str

    @property
    def is_script(self) -> bool:
        return self.text.startswith("#!")

    @property
    def num_ranks(self) -> int:
        """The processes that are requested, else the tasks."""
        asked = {name: int(count) for name, count in re.findall(r"--([\w-]+)[= ](\d+)\b", self.text)}
        return asked.get("num_processes") or asked["nodes"] * asked["ntasks-per-node"]

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.text.partition("train.py")[2])


def commands_of_the_guide() -> list[Command]:
    """Return the batch scripts and the commands of the guide."""
    found = []
    for block in blocks(GUIDE, "bash"):
        is_script = block.text.startswith("#!")
        found += [(block.line, block.text)] if is_script else commands(block)
    return [Command(line, with_replacements(text, SMALLER)) for line, text in found]


@pytest.fixture(scope="module")
def folder(cluster):
    made = cluster.folder / "pages"
    made.mkdir()
    (made / "train.py").write_text(TRAIN)
    return made


@pytest.fixture(scope="module")
def run(cluster, folder):
    """Return a function that runs a command as the reader would, and waits for the job that it submits."""
    # The GPUs are SLURM's alone: torch finds none.
    settings = ["env", "ACCELERATE_USE_CPU=true", "SBATCH_WAIT=1"]

    def run_one(*words: str) -> str:
        told = cluster.run(*settings, *words, cwd=folder)
        job = re.fullmatch(r"Submitted batch job (\d+)\n", told)
        return (folder / f"slurm-{job[1]}.out").read_text() if job else told

    return run_one


@pytest.mark.parametrize("command", commands_of_the_guide(), ids=lambda command: f"line {command.line}")
def test_what_the_guide_shows_runs_on_all_nodes(command, run, folder):
    if command.is_script:
        (folder / "job.sh").write_text(command.text)
        printed = run("sbatch", "job.sh")
    else:
        printed = run("bash", "-c", command.text)
    if "--dry-run" in command.text:
        (folder / "shown.sh").write_text(printed[printed.index("#!") :])
        run("sbatch", "--test-only", "shown.sh")
        return
    num_gpus = 2 if "--gpus" in command.text else "no"
    assert sorted(line for line in printed.splitlines() if line.startswith("rank ")) == [
        f"rank {rank} of {command.num_ranks} on n{rank * 2 // command.num_ranks},"
        f" {num_gpus} GPUs, arguments {command.arguments}"
        for rank in range(command.num_ranks)
    ]


def test_every_change_is_one_of_the_guide():
    assert not [words for words in SMALLER if words not in GUIDE.read_text(encoding="utf-8")]


def test_a_script_becomes_ranks_of_srun_as_its_page_specifies(run, folder):
    page = ROOT / "packages" / "accel-state" / "README.md"
    assert "`srun -n 2`" in page.read_text(encoding="utf-8")
    (block,) = (block for block in blocks(page, "python") if "current_runtime" in block.text)
    (folder / "state.py").write_text(block.text)
    printed = run("srun", "-n", "2", "python", "state.py")
    assert "2 process(es) on cpu, started by slurm\n" in printed
    assert {"rank 0 works on [1, 2]", "rank 1 works on [3, 4]"} <= set(printed.splitlines())
