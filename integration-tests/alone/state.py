"""Rank, device and turns of a script that torchrun starts: accel-state and nothing else of accel.

torchrun --nproc_per_node 2 state.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from accel_state import PartialState

state = PartialState(cpu=True)
folder = Path(sys.argv[1])
prompts = [f"prompt {number}" for number in range(5)]

with state.split_between_processes(prompts, apply_padding=True) as mine:
    answers = [int(prompt.removeprefix("prompt ")) for prompt in mine]
everyone = torch.tensor(answers)
if state.num_processes > 1:
    parts = [torch.empty_like(everyone) for _ in range(state.num_processes)]
    dist.all_gather(parts, everyone)
    everyone = torch.cat(parts)[
        : len(prompts)
    ]  # the last rank repeats a prompt, so that all have equally many
assert everyone.tolist() == [0, 1, 2, 3, 4], everyone

with state.main_process_first():  # one process downloads, the others find the file
    cached = folder / "cache.txt"
    if not cached.exists():
        cached.write_text(f"made by {state.process_index}")
assert cached.read_text() == "made by 0"


@state.on_main_process
def write_report(text):
    (folder / "report.txt").write_text(text)


write_report(f"{len(everyone)} answers from {state.num_processes} on {state.device}")
state.wait_for_everyone()
assert (folder / "report.txt").exists()
state.print((folder / "report.txt").read_text())
state.destroy_process_group()
