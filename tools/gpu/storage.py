"""Files of 8 and 12 GB: loaded to the device, generated from with room for 2 GB there, and saved behind the loop."""

from __future__ import annotations

import importlib
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tools.gpu.measuring import LIBRARIES, Bench, ratio
from tools.gpu.training import Llama


def roomy_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder in memory or on disk, where there is more room; it is deleted afterwards."""
    places = [place for place in ("/dev/shm", tempfile.gettempdir()) if Path(place).is_dir()]  # noqa: S108 -- memory
    return tempfile.TemporaryDirectory(dir=max(places, key=lambda place: shutil.disk_usage(place).free))


def saved(bench: Bench, folder: Path, **options: Any) -> tuple[Llama, Any, int]:
    """Return a model whose weights lie in files, and their bytes."""
    llama = Llama(bench, (4096, 14336, 18, 32, 32000), batch=1, dtype=torch.bfloat16)
    model = llama.model(**options).eval()
    num_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    model.save_pretrained(folder, max_shard_size=num_bytes // 4)
    return llama, model, num_bytes


def dispatched(llama: Llama, library: str, folder: Path, options: Any, **places: Any) -> Any:
    """Return the model of the files, made by a library."""
    package = importlib.import_module(library)
    model = llama.model(package.init_empty_weights(include_buffers=False), **options).eval()
    return package.load_checkpoint_and_dispatch(model, folder, **places)


def pinned_read(bench: Bench, files: list[Path]) -> float:
    """Return the seconds for which threads read files into pinned memory and copy it to the device."""
    chunk = 64 << 20 if bench.is_cuda else 1 << 16
    sizes = [(os.open(file, os.O_RDONLY), file.stat().st_size) for file in files]
    pieces = [(number, offset) for number, size in sizes for offset in range(0, size, chunk)]
    host = torch.empty(len(pieces), chunk, dtype=torch.uint8, pin_memory=bench.is_cuda)
    target = torch.empty_like(host, device=bench.device)

    def read(place: int) -> None:
        number, offset = pieces[place]
        values: Any = host[place].numpy()
        os.preadv(number, [memoryview(values)], offset)
        target[place].copy_(host[place], non_blocking=True)

    with ThreadPoolExecutor(8) as pool:
        return bench.clocked(lambda: list(pool.map(read, range(len(pieces)))))[1]


def load(bench: Bench) -> None:
    """Put one row: plain is safetensors' own `load_file`, the bound reads into pinned memory and copies."""
    from safetensors.torch import load_file

    place, figures, wrong = {"": 0 if bench.is_cuda else "cpu"}, {}, ""
    with roomy_folder() as name:
        folder = Path(name)
        llama, model, num_bytes = saved(bench, folder)
        expected, files = model.state_dict(), list(folder.glob("*.safetensors"))
        ways: dict[str, Callable[[], Any]] = {
            "plain": lambda: [load_file(file, device=str(bench.device)) for file in files],
            **{
                name: partial(dispatched, llama, name, folder, {}, device_map=place) for name in LIBRARIES[1:]
            },
        }
        figures["bound"] = round(min(pinned_read(bench, files) for _ in range(2)), 3)
        for name, way in ways.items():
            seconds = []
            for _ in range(2):
                bench.clear()
                loaded, took = bench.clocked(way)
                seconds.append(took)
                state = loaded.state_dict() if name == "accel" else expected
                off = [key for key, value in expected.items() if not torch.equal(state[key], value)]
                wrong = f"{len(off)} tensors differ: {off[:2]}" if off else wrong
                del loaded, state
            figures[name] = round(min(seconds), 3)
    row, goal = f"load {num_bytes / 1e9:.1f} GB to the device", "≥ 0.8 of pinned read and copy"
    note = f"{ratio(figures['bound'], figures['accel'])} of the bound"
    bench.put(row, "s", goal, figures, note=note, wrong=wrong, bound=1 / 0.8)


def generate(bench: Bench, model: Any, num_tokens: int = 8) -> tuple[list[int], float]:
    """Return greedy tokens and how many a second; each is one pass through all weights."""
    prompt = torch.arange(1, 17, device=bench.device)[None]
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    run = partial(model.generate, prompt, attention_mask=torch.ones_like(prompt), do_sample=False)
    with torch.inference_mode():
        run(max_new_tokens=2)
        written, seconds = bench.clocked(lambda: run(max_new_tokens=num_tokens))
    return written[0, prompt.shape[1] :].tolist(), round(num_tokens / seconds, 3)


def offloaded_generation(bench: Bench) -> None:
    """Put one row; plain is the resident model, the bound what the bus allows."""
    limits: dict[int | str, Any] = {0: "300KB" if bench.is_small else "2GB", "cpu": "60GB"}
    limits = limits if bench.is_cuda else {"cpu": "300KB"}
    figures, cached = {}, {"use_cache": True}
    with roomy_folder() as name:
        folder = Path(name)
        llama, resident, num_bytes = saved(bench, folder / "model", **cached)
        written = {"plain": (first := generate(bench, resident))[0]}
        figures["plain"] = first[1]
        del resident
        bench.clear()
        for library in LIBRARIES[:0:-1]:
            bench.clear()
            model = dispatched(
                llama, library, folder / "model", cached, device_map="auto", max_memory=limits,
                no_split_module_classes=["LlamaDecoderLayer"], offload_folder=str(folder / library),
            )  # fmt: skip
            elsewhere = sum(one.nbytes for one in model.parameters() if one.is_meta)
            written[library], figures[library] = generate(bench, model)
            del model
    peak, elsewhere_s = bench.peak(), bench.seconds_to_copy(elsewhere, to_device=True)
    figures["bound"] = round(1 / elsewhere_s, 3)  # for what accel, the last, has elsewhere
    bus = f"{elsewhere / 1e9 / elsewhere_s:.1f} GB/s"
    note = f"{ratio(figures['accel'], figures['bound'])} of the bound, bus {bus}, peak {peak}"
    wrong = "" if written["accel"] == written["plain"] else f"writes {written}"
    row = f"generate, {num_bytes / 1e9:.1f} GB, 2 GB of it on the device"
    bench.put(row, "tokens/s", "≥ 0.9 of the bus", figures, note=note, wrong=wrong, bound=0.9)


def saves(bench: Bench) -> None:
    """Put a row for the first and the second background save, for saves and for loads."""
    with roomy_folder() as folder:
        _saves(bench, Path(folder))


def _saves(bench: Bench, folder: Path) -> None:
    llama = Llama(bench, (2048, 8192, 14, 16, 32768), batch=2, length=1024)
    model = llama.model()
    (optimizer,) = llama.adamw(model)
    num_bytes = 12 * sum(parameter.numel() for parameter in model.parameters())
    copied_s = bench.seconds_to_copy(num_bytes, to_device=False)
    text, saved, loaded = f"{num_bytes / 1e9:.1f} GB", {}, {}

    def seconds(function: Any, *arguments: Any) -> float:
        return round(bench.clocked(partial(function, *arguments))[1], 3)

    def step(module: Any, stepping: Any, backward: Any) -> None:
        backward(llama.loss(module))
        stepping.step()
        stepping.zero_grad()

    def tensors() -> dict[str, torch.Tensor]:
        moments = [state[key] for state in optimizer.state.values() for key in sorted(state)]
        return {**model.state_dict(), **{f"moment {place}": each for place, each in enumerate(moments)}}

    def load_plainly(path: Path) -> None:
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    step(model, optimizer, torch.Tensor.backward)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saved["plain"] = seconds(torch.save, state, folder / "plain.pt")
    loaded["plain"] = seconds(load_plainly, folder / "plain.pt")
    (folder / "plain.pt").unlink()
    ours = bench.accelerator("accel")
    own = *ours.prepare(model, optimizer), ours.backward
    saved["accel"] = seconds(ours.save_state, folder / "blocking")
    shutil.rmtree(folder / "blocking")
    alone = statistics.median(seconds(step, *own) for _ in range(20 if bench.is_cuda else 3))
    for name in ("first", "second"):
        shutil.rmtree(folder / "first", ignore_errors=True)
        handle, blocked_s = bench.clocked(partial(ours.save_state, folder / name, blocking=False))
        expected = {key: value.clone() for key, value in tensors().items()}
        beside = [seconds(step, *own)]
        while not handle.done():
            beside.append(seconds(step, *own))
        handle.wait()
        figures = {"bound": round(copied_s, 3), "accel": round(blocked_s, 3)}
        note = f"a step meanwhile takes {ratio(statistics.median(beside), alone)} of one alone"
        row = f"the {name} background save of {text}: blocks"
        bench.put(row, "s", "≤ 2 pinned copies", figures, note=note, bound=2)
    with torch.no_grad():
        for value in tensors().values():
            value.zero_()
    loaded["accel"] = seconds(ours.load_state, folder / "second")
    off = [key for key, value in tensors().items() if not torch.equal(value, expected[key])]
    shutil.rmtree(folder / "second")
    ours.free_memory()
    theirs = bench.accelerator("accelerate")
    theirs.prepare(model, optimizer)
    saved["accelerate"] = seconds(theirs.save_state, str(folder / "theirs"))
    loaded["accelerate"] = seconds(theirs.load_state, str(folder / "theirs"))
    bench.put(f"save_state of {text}", "s", "≤ plain's `torch.save`", saved, plain=1)
    wrong = f"{len(off)} of {len(expected)} tensors differ: {off[:3]}" if off else ""
    bench.put(f"load_state of {text}", "s", "", loaded, wrong=wrong)
