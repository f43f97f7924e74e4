"""Bytes on their way: batches from workers, files of 8 GB to the device and through it, and saves of 12 GB."""

from __future__ import annotations

import importlib
import itertools
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tools.gpu import bench
from tools.gpu.bench import DEVICE, IS_CUDA, LIBRARIES, clocked
from tools.gpu.training import Llama


def loader() -> None:
    """Put one row; plain copies one batch ahead from pinned memory, by hand."""
    count = 49_152 if bench.HAS_GOALS else 512  # whole batches
    images = torch.randint(256, (count, 3, 64, 64), dtype=torch.uint8)
    data = TensorDataset(images, torch.randint(10, (count,)))

    def epoch_of(library: str) -> Callable[[], None]:
        layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
        model: Any = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        optimizer: Any = torch.optim.SGD(model.to(DEVICE).parameters(), lr=1e-3)
        options: Any = {"pin_memory": IS_CUDA, "persistent_workers": True, "num_workers": 8 if IS_CUDA else 2}
        batches: Any = DataLoader(data, 256, **options)
        backward: Any = torch.Tensor.backward
        if library != "plain":
            ours = bench.accelerator(
                library, lambda utils: {"dataloader_config": utils.DataLoaderConfiguration(non_blocking=True)}
            )
            model, optimizer, batches = ours.prepare(model, optimizer, batches)
            backward = ours.backward

        def epoch() -> None:
            moved: Any = ([each.to(DEVICE, non_blocking=True) for each in batch] for batch in batches)
            one_ahead = (batch for batch, _ in itertools.pairwise(itertools.chain(moved, [None])))
            for images, labels in one_ahead if library == "plain" else batches:
                backward(nn.functional.cross_entropy(model(images.float() / 255), labels))
                optimizer.step()
                optimizer.zero_grad()

        return epoch

    seconds = bench.rounds({library: epoch_of(library) for library in LIBRARIES}, 3 if IS_CUDA else 1)
    figures = {library: round(count / min(each)) for library, each in seconds.items()}
    bench.put("8 workers, pinned memory, a small convolutional model", "samples/s", figures, plain=0.98)


@contextmanager
def roomy_folder() -> Iterator[Path]:
    """Have a folder in memory or on disk, where there is more room."""
    places = [place for place in ("/dev/shm", tempfile.gettempdir()) if Path(place).is_dir()]  # noqa: S108 -- memory
    roomiest = max(places, key=lambda place: shutil.disk_usage(place).free)
    with tempfile.TemporaryDirectory(dir=roomiest) as name:
        yield Path(name)


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
    run = partial(model.generate, prompt, attention_mask=torch.ones_like(prompt), do_sample=False)
    with torch.inference_mode():
        run(max_new_tokens=2)
        written, seconds = clocked(lambda: run(max_new_tokens=num_tokens))
    return written[0, prompt.shape[1] :].tolist(), round(num_tokens / seconds, 3)


def big_model() -> None:
    """Put a row for a load of 8 GB and one for generation with 2 GB of it on the device.

    Plain is safetensors' own `load_file`, and the resident model; bounds are files read into pinned memory by threads
    and copied, and what the bus allows.
    """
    from safetensors.torch import load_file

    llama = Llama((4096, 14336, 18, 32, 32000), batch=1, dtype=torch.bfloat16)
    resident = llama.model(use_cache=True).eval()
    expected = resident.state_dict()
    num_bytes = sum(tensor.nbytes for tensor in expected.values())
    limits: dict[int | str, Any] = {0: "300KB" if bench.IS_SMALL else "2GB", "cpu": "60GB"}
    limits = limits if IS_CUDA else {"cpu": "300KB"}
    seconds, written, speeds = {}, {}, {}

    def dispatched(library: str, **places: Any) -> Any:
        package = importlib.import_module(library)
        model = llama.model(package.init_empty_weights(include_buffers=False), use_cache=True).eval()
        return package.load_checkpoint_and_dispatch(model, folder / "model", **places)

    with roomy_folder() as folder:
        resident.save_pretrained(folder / "model", max_shard_size=num_bytes // 4)
        files = list((folder / "model").glob("*.safetensors"))
        seconds["bound"] = round(min(pinned_read(files) for _ in range(2)), 3)
        whole = partial(dispatched, device_map={"": 0 if IS_CUDA else "cpu"})
        ways: dict[str, Any] = {name: partial(whole, name) for name in LIBRARIES[1:]}
        ways["plain"] = lambda: [load_file(file, device=str(DEVICE)) for file in files]
        for name, way in ways.items():
            for _ in range(2):
                bench.clear()
                loaded, took = clocked(way)
                seconds[name] = round(min(took, seconds.get(name, took)), 3)
                state = loaded.state_dict() if name == "accel" else expected
                assert [key for key, value in expected.items() if not torch.equal(state[key], value)] == []
                del loaded, state
        bench.put(f"load {num_bytes / 1e9:.1f} GB to the device", "s", seconds, bound=1.25)
        written["plain"], speeds["plain"] = generate(resident)
        del resident, expected
        for library in LIBRARIES[:0:-1]:
            bench.clear()
            model = dispatched(
                library, device_map="auto", max_memory=limits, no_split_module_classes=["LlamaDecoderLayer"],
                offload_folder=str(folder / library),
            )  # fmt: skip
            elsewhere = sum(one.nbytes for one in model.parameters() if one.is_meta)
            written[library], speeds[library] = generate(model)
            del model
    note, bus_s = bench.peak(), bench.seconds_to_copy(elsewhere, to_device=True)
    speeds["bound"] = round(1 / bus_s, 3)  # for what accel, the last, has elsewhere
    note += f", bus {elsewhere / 1e9 / bus_s:.1f} GB/s"
    row = f"generate, {num_bytes / 1e9:.1f} GB, 2 GB of it on the device"
    bench.put(row, "tokens/s", speeds, note=note, bound=0.9)
    assert written["accel"] == written["plain"]


def saves() -> None:
    """Put rows for saves and loads, and for the first and the second background save; each load must be exact."""
    llama = Llama((2048, 8192, 14, 16, 32768), batch=2, length=1024)
    model = llama.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=IS_CUDA)
    num_bytes = 12 * sum(parameter.numel() for parameter in model.parameters())
    text, saved, loaded = f"{num_bytes / 1e9:.1f} GB", {}, {}
    own: tuple[Any, ...] = model, optimizer, torch.Tensor.backward

    def step() -> None:
        module, stepping, backward = own  # of the library at hand
        backward(llama.loss(module))
        stepping.step()
        stepping.zero_grad()

    def tensors() -> dict[str, torch.Tensor]:
        moments = [state[key] for state in optimizer.state.values() for key in sorted(state)]
        return {**model.state_dict(), **{f"moment {place}": each for place, each in enumerate(moments)}}

    def save_plainly(path: str) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    def load_plainly(path: str) -> None:
        found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    def seconds_to_load(load: Any, expected: dict[str, torch.Tensor]) -> float:
        with torch.no_grad():
            for value in tensors().values():
                value.zero_()
        seconds = clocked(load, path)[1]
        assert [key for key, value in tensors().items() if not torch.equal(value, expected[key])] == []
        return round(seconds, 3)

    step()
    with roomy_folder() as folder:
        path, save, load = str(folder / "saved"), save_plainly, load_plainly
        for library in ("plain", "accelerate", "accel"):
            if library != "plain":
                ours = bench.accelerator(library)
                own = *ours.prepare(model, optimizer), ours.backward
                save, load = ours.save_state, ours.load_state
            expected = {key: value.clone() for key, value in tensors().items()}
            saved[library] = round(clocked(save, path)[1], 3)
            loaded[library] = seconds_to_load(load, expected)
            Path(path).unlink() if library == "plain" else shutil.rmtree(path)
        alone = statistics.median(clocked(step)[1] for _ in range(20 if IS_CUDA else 3))
        for name in ("first", "second"):
            handle, blocked_s = clocked(partial(ours.save_state, blocking=False), path)
            expected = {key: value.clone() for key, value in tensors().items()}
            beside = [clocked(step)[1]]
            while not handle.done():
                beside.append(clocked(step)[1])
            handle.wait()
            seconds_to_load(load, expected)
            shutil.rmtree(path)
            copied_s = round(bench.seconds_to_copy(num_bytes, to_device=False), 3)
            figures = {"bound": copied_s, "accel": round(blocked_s, 3)}
            note = f"a step meanwhile takes {bench.ratio(statistics.median(beside), alone)} of one alone"
            row = f"the {name} background save of {text}: blocks"
            bench.put(row, "s", figures, note=note, bound=2)
    bench.put(f"save_state of {text}", "s", saved, plain=1)
    bench.put(f"load_state of {text}", "s", loaded)
