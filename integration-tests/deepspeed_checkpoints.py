"""Save and load states of DeepSpeed's engines: `deepspeed_checkpoints.py FOLDER two|one|back`, on 2, 1 and 2 ranks.

Each rank writes how far values are from those that they must be to FOLDER/PHASE.RANK, by what was tried.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path

import deepspeed_engines
import torch
from deepspeed_runs import Run, distance

from accel import Accelerator

STAGES = (0, 1, 2, 3)
OTHERS = {"ddp": (1, 3), "fsdp2": (2,)}
"""Strategies, and the stages whose checkpoints they exchange."""


def two(folder):
    found = {}
    for stage in STAGES:
        run = Run(stage)
        run.train()
        if stage % 2:
            run.accelerator.save_state(folder / f"zero{stage}", blocking=False).wait()
        else:
            run.accelerator.save_state(folder / f"zero{stage}")
        run.accelerator.save_state(folder / f"full{stage}", checkpoint_format="full")
        run.accelerator.save_model(run.model, folder / f"weights{stage}")
        whole, wanted = run.accelerator.get_state_dict(run.model), run.values()
        if run.accelerator.is_main_process:
            torch.save(wanted, folder / f"zero{stage}.pt")
            found[f"get_state_dict of stage {stage}"] = distance(wanted["model"], dict(whole))
        as_peer(run, folder / f"peer{stage}", like=folder / f"zero{stage}")
        run.train()
        later = run.values()
        other = Run(stage, seed=7, lr=0.5)
        other.accelerator.load_state(folder / f"zero{stage}", verify=True)
        found[f"stage {stage} resumed"] = distance(wanted, other.values())
        other.train()
        found[f"stage {stage} two steps later"] = distance(later, other.values())
        other.accelerator.load_state(folder / f"peer{stage}", strict=False)
        found[f"stage {stage} from DeepSpeed's own save"] = distance(wanted, other.values())
    for kind, stages in OTHERS.items():
        run = Run(kind)
        run.train()
        run.accelerator.save_state(folder / kind)
        wanted = run.values()
        for stage in stages:
            for form in ("zero", "full"):
                run.accelerator.load_state(folder / f"{form}{stage}")
                found[f"{kind} from {form}{stage}"] = distance(
                    torch.load(folder / f"zero{stage}.pt"), run.values()
                )
            other = Run(stage, seed=7)
            other.accelerator.load_state(folder / kind)
            found[f"stage {stage} from {kind}"] = distance(wanted, other.values())
    return found


def as_peer(run, folder, *, like):
    """Let DeepSpeed save by itself, as Accelerate lets it, with files of random states as Accelerate has them."""
    run.model.save_checkpoint(str(folder), "pytorch_model")
    if run.accelerator.is_main_process:
        for rank in range(run.accelerator.num_processes):
            state = torch.load(like / f"random_states_{rank}.pkl", weights_only=False)
            torch.save(
                {name: one for name, one in state.items() if name != "accel_format"},
                folder / f"random_states_{rank}.pkl",
            )
        shutil.copy(like / "scheduler.bin", folder)
    run.accelerator.wait_for_everyone()


def one(folder):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    found = {}
    for stage in STAGES:
        wanted = torch.load(folder / f"zero{stage}.pt")
        run = Run(stage, seed=7)
        run.accelerator.load_state(folder / f"zero{stage}")
        found[f"stage {stage} on one rank"] = distance(wanted, run.values())
        run.accelerator.save_state(folder / f"one{stage}")
        if stage:
            weights = dict(get_fp32_state_dict_from_zero_checkpoint(str(folder / f"zero{stage}")))
            if stage == 1:  # DeepSpeed leaves frozen weights out of what its script reads
                weights = {
                    **{name: wanted["model"][name] for name in ("frozen.weight", "frozen.bias")},
                    **weights,
                }
            found[f"zero_to_fp32 of stage {stage}"] = distance(wanted["model"], weights)
    return found


def back(folder):
    found = {}
    for stage in STAGES:
        run = Run(stage, seed=7)
        run.accelerator.load_state(folder / f"one{stage}")
        found[f"stage {stage} on two ranks again"] = distance(
            torch.load(folder / f"zero{stage}.pt"), run.values()
        )
        run.accelerator.load_state(folder / f"zero{3 - stage}")
        found[f"stage {stage} from stage {3 - stage}"] = distance(
            torch.load(folder / f"zero{3 - stage}.pt"), run.values()
        )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    place, phase = Path(sys.argv[1]), sys.argv[2]
    differences = {"two": two, "one": one, "back": back}[phase](place)
    differences |= getattr(deepspeed_engines, phase)(place)
    rank = Accelerator(cpu=True).process_index
    (place / f"{phase}.{rank}").write_text(json.dumps(differences))
