"""8.4 GB of safetensors: seconds to the device, and tokens per second of a model with room for 2 GB there."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from tools.gpu.measuring import Bench, Row, ratio, roomy_folder
from tools.gpu.training import Size, make_llama


def _config(bench: Bench, **more: Any) -> Any:
    return Size.of(bench, 4096, 14336, 18, 32, 32000, batch=1).config(**more)


def write_checkpoint(bench: Bench, model: torch.nn.Module, folder: Path) -> list[Path]:
    """Write four files with an index, with safetensors only."""
    from safetensors.torch import save_file

    tensors = list(model.state_dict().items())
    count = -(-len(tensors) // 4)
    shards = [dict(tensors[place * count : (place + 1) * count]) for place in range(4)]
    files = [folder / f"model-{place}-of-4.safetensors" for place in range(1, 5)]

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
            model: Any = LlamaForCausalLM(config)
            return model.eval()
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
        values: Any = buffers[place].numpy()
        view, cuda = memoryview(values), torch.get_device_module(bench.device)
        stream = cuda.Stream() if bench.is_cuda else None
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


def load(bench: Bench) -> None:
    """Put one row: plain is safetensors' `load_file`, the bound reads into pinned memory and copies."""
    from safetensors.torch import load_file

    config = _config(bench)
    model = make_llama(bench, config, torch.bfloat16)
    expected = model.state_dict()
    num_bytes = sum(tensor.nbytes for tensor in expected.values())
    row = Row(f"load {num_bytes / 1e9:.1f} GB to the device", "s", "≥ 0.8 of pinned read and copy")

    def through(library: str, folder: Path) -> float:
        empty = skeleton(library, config)
        place = {"": 0} if bench.is_cuda else {"": "cpu"}
        dispatch = importlib.import_module(library).load_checkpoint_and_dispatch
        loaded, seconds = bench.clocked(lambda: dispatch(empty, folder, device_map=place))
        state = loaded.state_dict()
        off = [name for name, value in expected.items() if not torch.equal(state[name], value)]
        if off and library == "accel":
            row.wrong.append(f"{len(off)} tensors differ: {off[:2]}")
        return seconds

    with roomy_folder(num_bytes) as base:
        folder = base / "model"
        files = write_checkpoint(bench, model, folder)
        device = str(bench.device)
        ways: dict[str, Callable[[], float]] = {
            "bound": lambda: pinned_read(bench, files),
            "plain": lambda: bench.clocked(lambda: [load_file(file, device=device) for file in files])[1],
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


def generate(bench: Bench, model: Any, num_tokens: int) -> tuple[list[int], float]:
    """Return greedy tokens and how many a second; each is one pass through all weights."""
    prompt = torch.arange(1, 17, device=bench.device)[None]
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": num_tokens, "do_sample": False}
    with torch.inference_mode():
        model.generate(prompt, **{**options, "max_new_tokens": 2})
        written, seconds = bench.clocked(lambda: model.generate(prompt, **options))
    return written[0, prompt.shape[1] :].tolist(), num_tokens / seconds


def offloaded_generation(bench: Bench) -> None:
    """Put one row; plain is the resident model, the bound what the bus allows."""
    config = _config(bench, use_cache=True)
    limits: dict[int | str, Any] = {"cpu": "300KB"}
    if bench.is_cuda:
        limits = {0: "300KB" if bench.is_small else "2GB", "cpu": "60GB"}
    resident = make_llama(bench, config, torch.bfloat16).eval()
    num_bytes = sum(tensor.nbytes for tensor in resident.state_dict().values())
    row = Row(f"generate, {num_bytes / 1e9:.1f} GB, 2 GB of it on the device", "tokens/s", "≥ 0.9 of the bus")
    with roomy_folder(2 * num_bytes) as base:
        write_checkpoint(bench, resident, base / "model")
        expected, row.figures["plain"] = generate(bench, resident, 8)
        del resident
        bench.clear()
        bandwidth = bench.bytes_per_s()
        for library in ("accel", "accelerate"):
            bench.clear()
            model = importlib.import_module(library).load_checkpoint_and_dispatch(
                skeleton(library, config), base / "model", device_map="auto", max_memory=limits,
                no_split_module_classes=["LlamaDecoderLayer"], offload_folder=str(base / library),
            )  # fmt: skip
            elsewhere = sum(one.nbytes for one in model.parameters() if one.is_meta)
            written, row.figures[library] = generate(bench, model, 8)
            if library == "accel":
                row.figures["bound"] = bandwidth / max(1, elsewhere)
                row.note = f"bus {bandwidth / 1e9:.1f} GB/s, peak {bench.peak_gb()} GB"
                if written != expected:
                    row.wrong.append(f"writes {written}, the resident model {expected}")
            del model
    reached = ratio(row.figures["accel"], row.figures["bound"])
    row.figures = {name: round(value, 3) for name, value in row.figures.items()}
    row.note = f"{reached} of the bound, {row.note}"
    if bench.has_goals and reached < 0.9:
        row.wrong.append(f"{reached} of what the bus allows")
    bench.put(row)
