"""Bytes on their way: batches from workers, files of 8 GB to the device and through it, and saves of 12 GB."""

from __future__ import annotations

import importlib
import shutil
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tools.gpu import bench
from tools.gpu.bench import DEVICE, IS_CUDA, LIBRARIES, clocked
from tools.gpu.training import Llama, step_of


def loader() -> None:
    """Put one row; by hand, copies of pinned batches are not waited for."""
    count = 49_152 if bench.HAS_GOALS else 512  # whole batches
    images = torch.randint(256, (count, 3, 64, 64), dtype=torch.uint8)
    data = TensorDataset(images, torch.randint(10, (count,)))
    options: Any = {"pin_memory": IS_CUDA, "persistent_workers": True, "num_workers": 8 if IS_CUDA else 2}

    def plugins(utils: Any) -> dict[str, Any]:
        return {"dataloader_config": utils.DataLoaderConfiguration(non_blocking=True)}

    def epoch_of(library: str) -> Callable[[], None]:
        layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(DEVICE)
        batches, batch = DataLoader(data, 256, **options), list[torch.Tensor]()
        if ours := bench.accelerator(library, plugins):
            batches = ours.prepare(batches)

        def loss_of(model: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(model(batch[0].float() / 255), batch[1])

        step = step_of(ours, model, [torch.optim.SGD(model.parameters(), lr=1e-3)], loss_of)

        def epoch() -> None:
            for tensors in batches:
                batch[:] = [tensor.to(DEVICE, non_blocking=True) for tensor in tensors]
                step()

        return epoch

    seconds = bench.rounds({library: epoch_of(library) for library in LIBRARIES}, 3 if IS_CUDA else 1)
    figures = {library: round(count / min(each)) for library, each in seconds.items()}
    bench.put("8 workers, pinned memory, a small convolutional model", "samples/s", figures, plain=0.98)


def pinned_read(files: list[Path]) -> float:
    """Return the seconds for which threads read files into pinned memory and copy it to the device."""
    chunk = 1 << (26 if IS_CUDA else 16)
    pieces = [(file, offset) for file in files for offset in range(0, file.stat().st_size, chunk)]
    host = torch.empty(len(pieces), chunk, dtype=torch.uint8, pin_memory=IS_CUDA)
    target = torch.empty_like(host, device=DEVICE)

    def read(piece: tuple[Path, int], here: torch.Tensor, there: torch.Tensor) -> None:
        values: Any = here.numpy()
        with piece[0].open("rb", buffering=0) as stream:
            stream.seek(piece[1])
            stream.readinto(values)
        there.copy_(here, non_blocking=True)

    with ThreadPoolExecutor(8) as pool:
        return clocked(lambda: list(pool.map(read, pieces, host, target)))[1]


def generate(model: Any, num_tokens: int = 8) -> tuple[list[int], float]:
    """Return greedy tokens and how many a second; each is one pass through all weights."""
    prompt = torch.arange(1, 17, device=DEVICE)[None]
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "use_cache": True}
    run = partial(model.generate, prompt, **options)
    with torch.inference_mode():
        run(max_new_tokens=2)
        written, seconds = clocked(lambda: run(max_new_tokens=num_tokens))
    return written[0, prompt.shape[1] :].tolist(), round(num_tokens / seconds, 3)


def big_model(tmp_path: Path) -> None:
    """Put a row for a load of 8 GB and one for generation with 2 GB of it on the device.

    Plain is safetensors' own `load_file`, and the resident model; bounds are files read into pinned memory by threads
    and copied, and what the bus allows.
    """
    llama = Llama((4096, 14336, 18, 32, 32000), batch=1, dtype=torch.bfloat16)
    resident = llama.model().eval()
    expected = resident.state_dict()
    num_bytes = sum(tensor.nbytes for tensor in expected.values())

    def dispatched(library: str, **places: Any) -> Any:
        package = importlib.import_module(library)
        model = llama.model(package.init_empty_weights(include_buffers=False)).eval()
        return package.load_checkpoint_and_dispatch(model, tmp_path / "model", **places)

    resident.save_pretrained(tmp_path / "model", max_shard_size=num_bytes // 4)
    files = list((tmp_path / "model").glob("*.safetensors"))
    seconds = {"bound": round(min(pinned_read(files) for _ in range(2)), 3)}
    whole = partial(dispatched, device_map={"": 0 if IS_CUDA else "cpu"})
    ways: dict[str, Any] = {"plain": lambda: [load_file(file, device=str(DEVICE)) for file in files]}
    for name, way in {**ways, **{name: partial(whole, name) for name in LIBRARIES[:0:-1]}}.items():
        bench.clear()
        (_, one), (loaded, two) = clocked(way), clocked(way)
        seconds[name] = round(min(one, two), 3)
    bench.put(f"load {num_bytes / 1e9:.1f} GB to the device", "s", seconds, bound=1.25)
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    written, speeds = {}, {}
    written["plain"], speeds["plain"] = generate(resident)
    del resident, expected, loaded
    limits = {0: "300KB" if bench.IS_SMALL else "2GB", "cpu": "60GB"} if IS_CUDA else {"cpu": "300KB"}
    for library in LIBRARIES[:0:-1]:
        bench.clear()
        places: Any = {"max_memory": limits, "offload_folder": str(tmp_path / library)}
        places["no_split_module_classes"] = ["LlamaDecoderLayer"]
        model = dispatched(library, device_map="auto", **places)
        elsewhere = sum(one.nbytes for one in model.parameters() if one.is_meta)
        written[library], speeds[library] = generate(model)
        del model
    peak, bus_s = torch.cuda.max_memory_allocated(), bench.seconds_to_copy(elsewhere)
    speeds["bound"] = round(1 / bus_s, 3)  # for what accel, the last, has elsewhere
    note = f"peak {peak / 1e9:.2f} GB, bus {elsewhere / 1e9 / bus_s:.1f} GB/s"
    row = f"generate, {num_bytes / 1e9:.1f} GB, 2 GB of it on the device"
    bench.put(row, "tokens/s", speeds, note=note, bound=0.9)
    assert written["accel"] == written["plain"]


def saves(tmp_path: Path) -> None:
    """Put rows for saves and loads, and for the first and the second background save."""
    llama = Llama((2048, 8192, 14, 16, 32768), batch=2, length=1024)
    model = llama.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=IS_CUDA)
    num_bytes = 12 * sum(parameter.numel() for parameter in model.parameters())
    path, text, saved, loaded = tmp_path / "saved", f"{num_bytes / 1e9:.1f} GB", {}, {}

    def save(path: Path) -> None:
        path.mkdir()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path / "all.pt")

    def load(path: Path) -> None:
        content = torch.load(path / "all.pt", map_location="cpu", mmap=True, weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])

    step_of(None, model, [optimizer], llama.loss)()
    for library in ("plain", "accelerate", "accel"):
        ours = bench.accelerator(library)
        step = step_of(ours, model, [optimizer], llama.loss)
        saved[library] = round(clocked(ours.save_state if ours else save, path)[1], 3)
        expected = [parameter.clone() for parameter in model.parameters()]
        step()
        loaded[library] = round(clocked(ours.load_state if ours else load, path)[1], 3)
        assert all(map(torch.equal, model.parameters(), expected)), library
        shutil.rmtree(path)
    alone = statistics.median(clocked(step)[1] for _ in range(20 if IS_CUDA else 3))
    for name in ("first", "second"):
        handle, blocked_s = clocked(partial(ours.save_state, blocking=False), path)
        beside = [clocked(step)[1]]
        while not handle.done():
            beside.append(clocked(step)[1])
        handle.wait()
        shutil.rmtree(path)
        copied_s = round(bench.seconds_to_copy(num_bytes), 3)
        figures = {"bound": copied_s, "accel": round(blocked_s, 3)}
        note = f"a step meanwhile takes {statistics.median(beside) / alone:.3g} of one alone"
        bench.put(f"the {name} background save of {text}: blocks", "s", figures, note=note, bound=2)
    bench.put(f"save_state of {text}", "s", saved, plain=1)
    bench.put(f"load_state of {text}", "s", loaded)
