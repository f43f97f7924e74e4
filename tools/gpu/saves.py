"""Seconds that `save_state` and `load_state` of 12 GB block, in the loop and in the background."""

from __future__ import annotations

import shutil
import statistics
from functools import partial
from typing import Any

import torch

from tools.gpu.measuring import Bench, Row, ratio, roomy_folder
from tools.gpu.training import Size, adamw, make_llama, step_of


def saves(bench: Bench) -> None:
    """Put a row for the first and the second background save, for saves and for loads."""
    size = Size.of(bench, 2048, 8192, 14, 16, 32768, batch=2, length=1024)
    model = make_llama(bench, size.config())
    (optimizer,) = adamw(model, bench)
    num_bytes = 12 * sum(parameter.numel() for parameter in model.parameters())
    step_of(bench, size, model, torch.Tensor.backward, [optimizer])()
    copied_s = num_bytes / bench.bytes_per_s(to_device=False)
    text = f"{num_bytes / 1e9:.1f} GB"
    whole = {
        "save": Row(f"save_state of {text}", "s", "≤ plain's `torch.save`"),
        "load": Row(f"load_state of {text}", "s"),
    }

    def note(what: str, library: str, function: Any) -> None:
        whole[what].figures[library] = round(bench.clocked(function)[1], 3)

    def tensors() -> dict[str, torch.Tensor]:
        states = optimizer.state.values()
        moments = {
            f"{place}.{key}": value for place, state in enumerate(states) for key, value in state.items()
        }
        return {**model.state_dict(), **moments}

    def load_plainly(path: Any) -> None:
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    with roomy_folder(2 * num_bytes) as folder:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        note("save", "plain", lambda: torch.save(state, folder / "plain.pt"))
        note("load", "plain", lambda: load_plainly(folder / "plain.pt"))
        (folder / "plain.pt").unlink()
        ours = bench.accelerator("accel")
        prepared, stepping = ours.prepare(model, optimizer)
        step = step_of(bench, size, prepared, ours.backward, [stepping])
        note("save", "accel", lambda: ours.save_state(folder / "blocking"))
        shutil.rmtree(folder / "blocking")
        alone = [bench.clocked(step)[1] for _ in range(20 if bench.is_cuda else 3)]
        for name in ("first", "second"):
            row = Row(f"the {name} background save of {text}: blocks", "s", "≤ 2 pinned copies")
            save = partial(ours.save_state, folder / name, blocking=False)
            handle, blocked_s = bench.clocked(save)
            expected = {key: value.clone() for key, value in tensors().items()}
            beside = [bench.clocked(step)[1]]
            while not handle.done():
                beside.append(bench.clocked(step)[1])
            handle.wait()
            row.figures = {"bound": round(copied_s, 3), "accel": round(blocked_s, 3)}
            slower = ratio(statistics.median(beside), statistics.median(alone))
            row.note = f"a step during the save takes {slower} of a step without it"
            if bench.has_goals and blocked_s > 2 * copied_s:
                row.wrong.append(f"{ratio(blocked_s, copied_s)} pinned copies")
            bench.put(row)
            if name == "first":
                shutil.rmtree(folder / name)
        with torch.no_grad():
            for value in tensors().values():
                value.zero_()
        note("load", "accel", lambda: ours.load_state(folder / "second"))
        off = [key for key, value in tensors().items() if not torch.equal(value, expected[key])]
        if off:
            whole["load"].wrong.append(f"{len(off)} of {len(expected)} tensors differ: {off[:3]}")
        shutil.rmtree(folder / "second")
        ours.free_memory()
        theirs = bench.accelerator("accelerate")
        theirs.prepare(model, optimizer)
        note("save", "accelerate", lambda: theirs.save_state(str(folder / "theirs")))
        note("load", "accelerate", lambda: theirs.load_state(str(folder / "theirs")))
    saved = whole["save"].figures
    if bench.has_goals and saved["accel"] > saved["plain"]:
        whole["save"].wrong.append(f"{ratio(saved['accel'], saved['plain'])} of torch.save")
    for row in whole.values():
        bench.put(row)
