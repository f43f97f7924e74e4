"""Seconds for which `save_state` and `load_state` block, in the loop and behind it."""

from __future__ import annotations

import shutil
import statistics
from typing import Any

import torch

from tools.gpu.llama import ONE_B, Size, fused_adamw, make_llama, make_step
from tools.gpu.measuring import Bench, Row, ratio, roomy_folder


def run(bench: Bench) -> None:
    """Put a row for saves, loads, the first and the second background save, and a step next to one."""
    size = Size.of(bench, {**ONE_B, "num_hidden_layers": 14}, batch=2, length=1024)
    tokens = size.tokens(bench)
    model = make_llama(bench, size.config(), torch.float32)
    optimizer = fused_adamw(model, bench)
    num_bytes = 12 * sum(parameter.numel() for parameter in model.parameters())
    forward = lambda: model(input_ids=tokens, labels=tokens).loss  # noqa: E731
    make_step(forward, lambda loss: loss.backward(), [optimizer])()
    copied_s = num_bytes / bench.bytes_per_s(to_device=False)
    text = f"{num_bytes / 1e9:.1f} GB"
    saves = Row(f"save_state of {text}", "s", "≤ plain's `torch.save`")
    loads = Row(f"load_state of {text}", "s")

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
        _, saves.figures["plain"] = bench.clocked(lambda: torch.save(state, folder / "plain.pt"))
        _, loads.figures["plain"] = bench.clocked(lambda: load_plainly(folder / "plain.pt"))
        (folder / "plain.pt").unlink()
        accelerator = bench.accelerator("accel")
        model, optimizer = accelerator.prepare(model, optimizer)
        step = make_step(forward, accelerator.backward, [optimizer])
        _, saves.figures["accel"] = bench.clocked(lambda: accelerator.save_state(folder / "blocking"))
        shutil.rmtree(folder / "blocking")
        alone = [bench.clocked(step)[1] for _ in range(20 if bench.is_cuda else 3)]
        for name in ("first", "second"):
            row = Row(f"the {name} background save of {text}: blocks", "s", "≤ 2 pinned copies")
            handle, blocked_s = bench.clocked(
                lambda name=name: accelerator.save_state(folder / name, blocking=False)  # type: ignore[misc]
            )
            expected = {key: value.clone() for key, value in tensors().items()} if name == "second" else {}
            beside = [bench.clocked(step)[1]]
            while not handle.done():
                beside.append(bench.clocked(step)[1])
            handle.wait()
            row.figures = {"bound": round(copied_s, 3), "accel": round(blocked_s, 3)}
            slower = ratio(statistics.median(beside), statistics.median(alone))
            row.note = f"a step meanwhile takes {slower} of one alone"
            if bench.has_goals and blocked_s > 2 * copied_s:
                row.wrong.append(f"{ratio(blocked_s, copied_s)} pinned copies")
            bench.put(row)
            if name == "first":
                shutil.rmtree(folder / name)
        with torch.no_grad():
            for value in tensors().values():
                value.zero_()
        _, loads.figures["accel"] = bench.clocked(lambda: accelerator.load_state(folder / "second"))
        off = [key for key, value in tensors().items() if not torch.equal(value, expected[key])]
        if off:
            loads.wrong.append(f"{len(off)} of {len(expected)} tensors differ: {off[:3]}")
        shutil.rmtree(folder / "second")
        model, optimizer = accelerator.unwrap_model(model), optimizer.optimizer
        accelerator.free_memory()
        theirs = bench.accelerator("accelerate")
        model, optimizer = theirs.prepare(model, optimizer)
        _, saves.figures["accelerate"] = bench.clocked(lambda: theirs.save_state(str(folder / "theirs")))
        _, loads.figures["accelerate"] = bench.clocked(lambda: theirs.load_state(str(folder / "theirs")))
    for row in (saves, loads):
        row.figures = {name: round(value, 3) for name, value in row.figures.items()}
    if bench.has_goals and saves.figures["accel"] > saves.figures["plain"]:
        saves.wrong.append(f"{ratio(saves.figures['accel'], saves.figures['plain'])} of torch.save")
    bench.put(saves)
    bench.put(loads)
