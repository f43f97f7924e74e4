"""Seconds to get 8.4 GB of safetensors onto the device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import torch

from tools.gpu.files import pinned_read, size_of_model, skeleton, write_checkpoint
from tools.gpu.llama import make_llama
from tools.gpu.measuring import Bench, Row, ratio, roomy_folder


def run(bench: Bench) -> None:
    """Put one row: plain is safetensors' own `load_file`, the bound reads into pinned memory and copies."""
    from safetensors.torch import load_file

    config = size_of_model(bench).config()
    model = make_llama(bench, config, torch.bfloat16)
    expected = model.state_dict()
    num_bytes = sum(tensor.nbytes for tensor in expected.values())
    row = Row(f"load {num_bytes / 1e9:.1f} GB to the device", "s", "≥ 0.8 of pinned read and copy")

    def through(library: str, folder: Path) -> float:
        empty = skeleton(library, config)
        place = {"": 0} if bench.is_cuda else {"": "cpu"}
        load = importlib.import_module(library).load_checkpoint_and_dispatch
        loaded, seconds = bench.clocked(lambda: load(empty, folder, device_map=place))
        state = loaded.state_dict()
        off = [name for name, value in expected.items() if not torch.equal(state[name], value)]
        if off and library == "accel":
            row.wrong.append(f"{len(off)} tensors differ: {off[:2]}")
        return seconds

    with roomy_folder(num_bytes) as base:
        folder = base / "model"
        files = write_checkpoint(bench, model, folder)
        ways: dict[str, Callable[[], float]] = {
            "bound": lambda: pinned_read(bench, files),
            "plain": lambda: bench.clocked(
                lambda: [load_file(file, device=str(bench.device)) for file in files]
            )[1],
            "accel": lambda: through("accel", folder),
            "accelerate": lambda: through("accelerate", folder),
        }
        for name, way in ways.items():
            seconds = []
            for _ in range(2):
                bench.clear()
                seconds.append(way())
            row.figures[name] = round(min(seconds), 3)
    reached = ratio(row.figures["bound"], row.figures["accel"])
    row.note = f"{reached} of the bound"
    if bench.has_goals and reached < 0.8:
        row.wrong.append(f"{reached} of pinned read and copy")
    bench.put(row)
