"""Tokens per second of 8.4 GB of which 2 GB may lie on the device, the rest in host memory."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from tools.gpu.files import size_of_model, skeleton, write_checkpoint
from tools.gpu.llama import make_llama
from tools.gpu.measuring import Bench, Row, ratio, roomy_folder


def generate(bench: Bench, model: Any, num_tokens: int) -> tuple[list[int], float]:
    """Return greedy tokens and their seconds; each is one pass through all weights."""
    prompt = torch.arange(1, 17, device=bench.device)[None]
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    with torch.inference_mode():
        written, seconds = bench.clocked(
            lambda: model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=num_tokens, do_sample=False
            )
        )
    return written[0, prompt.shape[1] :].tolist(), seconds


def run(bench: Bench) -> None:
    """Put one row; plain is the resident model, the bound what the bus allows."""
    config = size_of_model(bench).config(use_cache=True)
    limits: dict[int | str, Any] = {0: "2GB", "cpu": "60GB"} if bench.is_cuda else {"cpu": "300KB"}
    if bench.is_cuda and bench.is_small:
        limits[0] = "300KB"
    num_tokens = 8 if bench.is_cuda else 4
    resident = make_llama(bench, config, torch.bfloat16).eval()
    num_bytes = sum(tensor.nbytes for tensor in resident.state_dict().values())
    row = Row(f"generate, {num_bytes / 1e9:.1f} GB, 2 GB of it on the device", "tokens/s", "≥ 0.9 of the bus")
    with roomy_folder(2 * num_bytes) as base:
        write_checkpoint(bench, resident, base / "model")
        generate(bench, resident, 2)
        expected, seconds = generate(bench, resident, num_tokens)
        row.figures["plain"] = round(num_tokens / seconds, 2)
        del resident
        bench.clear()
        bandwidth = bench.bytes_per_s()
        for library in ("accel", "accelerate"):
            bench.clear()
            speed, elsewhere, written = _offloaded(bench, library, config, base, limits, num_tokens)
            row.figures[library] = round(speed, 3)
            if library == "accel":
                row.figures["bound"] = round(bandwidth / elsewhere, 3)
                row.note = f"bus {bandwidth / 1e9:.1f} GB/s, peak {bench.peak_gb()} GB"
                if written != expected:
                    row.wrong.append(f"writes {written}, the resident model {expected}")
    reached = ratio(row.figures["accel"], row.figures["bound"])
    row.note = f"{reached} of the bound, {row.note}"
    if bench.has_goals and reached < 0.9:
        row.wrong.append(f"{reached} of what the bus allows")
    bench.put(row)


def _offloaded(
    bench: Bench, library: str, config: Any, base: Path, limits: dict[int | str, Any], num_tokens: int
) -> tuple[float, int, list[int]]:
    """Return tokens per second, bytes that are not on the device, and the tokens."""
    model = importlib.import_module(library).load_checkpoint_and_dispatch(
        skeleton(library, config), base / "model", device_map="auto", max_memory=limits,
        no_split_module_classes=["LlamaDecoderLayer"], offload_folder=str(base / library),
    )  # fmt: skip
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters() if parameter.is_meta}
    generate(bench, model, 2)
    written, seconds = generate(bench, model, num_tokens)
    return num_tokens / seconds, max(1, sum(sizes.values())), written
