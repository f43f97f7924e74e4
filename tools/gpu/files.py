"""Checkpoints of large models, and the fastest way that plain means allow to get their bytes to the device."""

from __future__ import annotations

import importlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from tools.gpu.llama import EIGHT_B, Size
from tools.gpu.measuring import Bench


def size_of_model(bench: Bench) -> Size:
    """Return a model of 8.4 GB in bf16."""
    return Size.of(bench, {**EIGHT_B, "num_hidden_layers": 18, "vocab_size": 32000}, batch=1)


def write_checkpoint(bench: Bench, model: torch.nn.Module, folder: Path) -> list[Path]:
    """Write safetensors files with an index, through safetensors alone."""
    from safetensors.torch import save_file

    limit = 2 << 30 if not bench.is_small else 1 << 16
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in model.state_dict().items():
        if shards[-1] and sum(each.nbytes for each in shards[-1].values()) + tensor.nbytes > limit:
            shards.append({})
        shards[-1][name] = tensor
    files = [
        folder / f"model-{place:05d}-of-{len(shards):05d}.safetensors" for place in range(1, len(shards) + 1)
    ]

    def write(file: Path, shard: dict[str, torch.Tensor]) -> None:
        save_file({name: tensor.cpu() for name, tensor in shard.items()}, file, metadata={"format": "pt"})

    folder.mkdir()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, files, shards))
    index = {name: file.name for file, shard in zip(files, shards, strict=True) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return files


def skeleton(library: str, config: Any) -> Any:
    """Return the model on the meta device, in bf16."""
    from transformers import LlamaForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with importlib.import_module(library).init_empty_weights(include_buffers=False):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def pinned_read(bench: Bench, files: list[Path], *, num_threads: int = 8) -> float:
    """Return the seconds that threads need to read files into pinned memory and copy it to the device."""
    chunk = 64 << 20 if bench.is_cuda else 1 << 16
    buffers = [torch.empty(chunk, dtype=torch.uint8, pin_memory=bench.is_cuda) for _ in range(num_threads)]
    targets = [torch.empty(chunk, dtype=torch.uint8, device=bench.device) for _ in range(num_threads)]
    pieces = [(file, offset) for file in files for offset in range(0, file.stat().st_size, chunk)]
    opened = {file: os.open(file, os.O_RDONLY) for file in files}
    lock = threading.Lock()

    def work(place: int) -> None:
        view = memoryview(buffers[place].numpy())
        stream = torch.cuda.Stream() if bench.is_cuda else None
        while True:
            with lock:
                if not pieces:
                    return
                file, offset = pieces.pop()
            count = os.preadv(opened[file], [view], offset)
            with torch.cuda.stream(stream) if stream else nullcontext():
                targets[place][:count].copy_(buffers[place][:count], non_blocking=True)
            if stream:
                stream.synchronize()

    with ThreadPoolExecutor(num_threads) as pool:
        _, seconds = bench.clocked(lambda: list(pool.map(work, range(num_threads))))
    for number in opened.values():
        os.close(number)
    return seconds
