"""How the cost of what users call grows with tensors, samples, leaves, checkpoints and ranks.

``python -m tools.bench.growth [STORY …]`` prints for each story how many calls it makes at a size, at twice and at four
times the size, and the exponent of the increase: 0 if the cost is constant, 1 if it is linear, 2 if there is a loop
in a loop. Calls of Python and C functions are counted on all threads, so the numbers do not depend on the
machine or its load; what a single call does in C (``name in names``) only shows in the seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

LIMIT = 1.1
"""Upper bound of the exponent of a linear story."""
_NOISE = 0.03
"""Share of the calls, at the largest size, that may be due to chance: threads that wait, caches."""

_IMPORTED = (
    "accel.accelerator",
    "accel_backends.strategies.fsdp2",
    "accel_bigmodel.dispatch",
    "accel_data.prepare",
    "torch._dynamo",
    "torch.distributed.fsdp",
)

Work = Callable[[], object]


@dataclass(frozen=True)
class Growth:
    """The costs of a story at a size, at twice and at four times the size."""

    story: str
    sizes: tuple[int, int, int]
    calls: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        return exponent_of(self.calls)


def exponent_of(counts: Sequence[int]) -> float:
    """Return the exponent of what three counts, each at twice the previous size, without their constant part."""
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    if second <= _NOISE * counts[2]:
        return 0.0
    return math.log2(second / max(first, 1))


def count_calls(work: Work) -> int:
    """Return how many functions of Python and C ``work`` calls, on this thread and the threads that it starts."""
    numbers: dict[int, int] = {}

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            thread = threading.get_ident()
            numbers[thread] = numbers.get(thread, 0) + 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sum(numbers.values())


class Blocks(nn.Module):
    """A model of ``num_tensors`` matrices, in blocks of ten."""

    def __init__(self, num_tensors: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(10)]) for _ in range(num_tensors // 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _accelerator(**options: Any) -> Any:
    from accel import Accelerator

    return Accelerator(cpu=True, **options)


def _trained(accelerator: Any, num_tensors: int) -> tuple[Any, Any]:
    """Return a model and an optimizer that has made a step."""
    model = Blocks(num_tensors)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), foreach=True))
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    return model, optimizer


def prepare(size: int, folder: Path) -> Work:
    """Prepare a model of as many tensors and its optimizer."""
    accelerator, model = _accelerator(), Blocks(size)
    optimizer = torch.optim.AdamW(model.parameters())
    return lambda: accelerator.prepare(model, optimizer)


def train_step(size: int, folder: Path) -> Work:
    """Backward pass, clipping and step of as many tensors."""
    accelerator = _accelerator()
    model, optimizer = _trained(accelerator, size)

    def step() -> None:
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return step


def save_state(size: int, folder: Path) -> Work:
    """Save a model of as many tensors and its optimizer."""
    accelerator = _accelerator()
    _trained(accelerator, size)
    return lambda: accelerator.save_state(str(folder / "state"))


def load_state(size: int, folder: Path) -> Work:
    """Load them."""
    accelerator = _accelerator()
    _trained(accelerator, size)
    accelerator.save_state(str(folder / "state"))
    return lambda: accelerator.load_state(str(folder / "state"))


def save_model(size: int, folder: Path) -> Work:
    """Save as many tensors in as many shards."""
    accelerator = _accelerator()
    model = accelerator.prepare(Blocks(size))
    return lambda: accelerator.save_model(model, folder / "model", max_shard_size=16)


def load_and_dispatch(size: int, folder: Path) -> Work:
    """Load as many tensors, half of them onto the disk."""
    from safetensors.torch import save_file

    from accel import init_empty_weights, load_checkpoint_and_dispatch

    save_file(Blocks(size).state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    with init_empty_weights():
        model = Blocks(size)
    places = {f"blocks.{number}": "disk" if number % 2 else "cpu" for number in range(size // 10)}
    return lambda: load_checkpoint_and_dispatch(
        model, str(folder / "model.safetensors"), device_map=places, offload_folder=str(folder / "offload")
    )


def offloaded_forward(size: int, folder: Path) -> Work:
    """Forward pass through as many tensors, offloaded to the CPU's memory."""
    from accel import cpu_offload

    model = Blocks(size)
    cpu_offload(model, execution_device="cpu")
    model(torch.ones(1, 2))
    return lambda: model(torch.ones(1, 2))


def device_map(size: int, folder: Path) -> Work:
    """Plan where as many tensors go, half of them to the disk."""
    from accel import infer_auto_device_map

    model = Blocks(size)
    return lambda: infer_auto_device_map(model, max_memory={"cpu": size * 8, "disk": 10**9})


class _Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def first_batch(size: int, folder: Path) -> Work:
    """The first shuffled batch of as many samples."""
    loader = _accelerator().prepare(torch.utils.data.DataLoader(_Numbers(size), batch_size=8, shuffle=True))
    return lambda: next(iter(loader))


def skipped_batches(size: int, folder: Path) -> Work:
    """The first batch after half of as many samples, skipped."""
    accelerator = _accelerator()
    loader = accelerator.prepare(torch.utils.data.DataLoader(_Numbers(size), batch_size=8, shuffle=True))
    return lambda: next(iter(accelerator.skip_first_batches(loader, size // 16)))


def gather(size: int, folder: Path) -> Work:
    """Gather a nested batch of as many leaves from two ranks."""
    _start_fake_group(2)
    accelerator = _accelerator()
    batch = {str(number): {"x": [torch.ones(2)] * 10} for number in range(size // 10)}
    return lambda: accelerator.gather(batch)


def save_with_limit(size: int, folder: Path) -> Work:
    """Save one more checkpoint where as many are kept."""
    from accel.configuration import ProjectConfiguration

    project = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, total_limit=size)
    accelerator = _accelerator(project_config=project)
    _trained(accelerator, 10)
    accelerator.save_state()
    for number in range(1, size):
        shutil.copytree(
            folder / "checkpoints" / "checkpoint_0", folder / "checkpoints" / f"checkpoint_{number}"
        )
    accelerator.project_configuration.iteration = size
    save: Work = accelerator.save_state
    return save


def list_checkpoints(size: int, folder: Path) -> Work:
    """List a folder of as many checkpoints."""
    from accel_checkpoint.listing import checkpoints_in

    save_with_limit(size, folder)
    return lambda: checkpoints_in(folder / "checkpoints")


def table_of_ranks(size: int, folder: Path) -> Work:
    """Write the table of a sharded checkpoint of as many ranks, and read it."""
    from accel_checkpoint.formats.distributed import read_metadata
    from accel_checkpoint.saving.distributed_files import DistributedTable, part_name
    from accel_checkpoint.saving.pending_files import write_file

    def note(rank: int) -> str:
        part = [[size, 2], [rank, 0], [1, 2]]
        notes = [
            {"paths": [["model", str(tensor)]], "place": [0, 9], "dtype": "int8", "part": part}
            for tensor in range(5)
        ]
        return json.dumps(notes)

    (folder / "state").mkdir()
    parts = [part_name("state", rank) for rank in range(size)]

    def work() -> None:
        for rank, part in enumerate(parts):
            (folder / f"{part}.note").write_text(note(rank), encoding="utf-8")
        write_file(DistributedTable("state/.metadata", parts), folder, replace=True)
        read_metadata(folder / "state" / ".metadata")

    return work


def device_mesh(size: int, folder: Path) -> Work:
    """Build the device mesh of as many ranks."""
    from accel import ParallelismConfig

    _start_fake_group(size)
    config = ParallelismConfig(dp_replicate_size=size // 8, dp_shard_size=4, tp_size=2)
    return lambda: config.build_device_mesh("cpu")


def prepare_sharded(size: int, folder: Path) -> Work:
    """Prepare as many tensors for FSDP2, a unit for every ten."""
    from accel import FullyShardedDataParallelPlugin

    _start_fake_group(8)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Sequential"],
    )
    accelerator, model = _accelerator(fsdp_plugin=plugin), Blocks(size)
    optimizer = torch.optim.AdamW(model.parameters())
    return lambda: accelerator.prepare(model, optimizer)


def store_round(size: int, folder: Path) -> Work:
    """The slowest rank's requests in a round of a save, of as many ranks: called again for each request."""
    from torch._C._distributed_c10d import PrefixStore

    from accel_checkpoint.ranks.agreement import StoreAgreement, first

    class Counting(PrefixStore):
        num_requests = 0

        def __getattribute__(self, name: str) -> Any:
            if name in ("set", "get", "add", "multi_get", "delete_key"):  # not `check`, which waits
                Counting.num_requests += 1
            return super().__getattribute__(name)

    class Present:
        num_bytes = 0

        def ended(self, ranks: object) -> list[int]:
            return []

    store = dist.HashStore()  # type: ignore[attr-defined]

    def run(rank: int) -> None:
        own = Counting("round", store) if rank in (0, size - 1) else PrefixStore("round", store)
        agreement = StoreAgreement(own, rank=rank, world_size=size, deadline_s=60, presence=Present())
        agreement.agree("written", "report", first)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lambda: [abs(1) for _ in range(Counting.num_requests)]


STORIES: dict[Callable[[int, Path], Work], int] = {
    prepare: 200,
    train_step: 200,
    save_state: 200,
    load_state: 200,
    save_model: 100,
    load_and_dispatch: 200,
    offloaded_forward: 200,
    device_map: 200,
    first_batch: 10_000,
    skipped_batches: 10_000,
    gather: 500,
    save_with_limit: 20,
    list_checkpoints: 20,
    table_of_ranks: 100,
    device_mesh: 64,
    prepare_sharded: 100,
    store_round: 8,
}
"""The measurement, and the smallest size."""
NAMES = {story.__name__: story for story in STORIES}


def measured(name: str) -> Growth:
    """Measure a story, each size in a separate process."""
    for module in _IMPORTED:
        import_module(module)  # once, before the forks
    smallest = STORIES[NAMES[name]]
    sizes = (smallest, 2 * smallest, 4 * smallest)
    fork = multiprocessing.get_context("fork")
    costs = []
    for size in sizes:
        receiving, sending = fork.Pipe(duplex=False)
        process = fork.Process(target=_measure, args=(name, size, sending))
        process.start()
        sending.close()
        costs.append(receiving.recv())
        process.join()
    calls, seconds = zip(*costs, strict=True)
    return Growth(name, sizes, calls, seconds)


def _measure(name: str, size: int, sending: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    story = NAMES[name]
    with tempfile.TemporaryDirectory(prefix="accel-growth-") as folder:
        roots = [Path(folder, number) for number in "ab"]
        for root in roots:
            root.mkdir()
        if story not in (
            gather,
            device_mesh,
            prepare_sharded,
            store_round,
        ):  # these are set up once in a process
            story(STORIES[story], roots[0])()  # imports and caches
            _forget()
        work = story(size, roots[1])
        started = time.perf_counter()
        calls, seconds = count_calls(work), time.perf_counter() - started
        if story is offloaded_forward:  # a thread that reads ahead waits now more, now less often
            calls = min(calls, *[count_calls(work) for _ in range(4)])
        sending.send((calls, seconds))
        sending.close()
    sys.stdout.flush()
    os._exit(0)  # the process exits: threads and groups of the run need no cleanup


def _forget() -> None:
    from accel_state import AcceleratorState

    AcceleratorState._reset_state(True)


def _start_fake_group(num_ranks: int) -> None:
    """Start torch's fake process group, whose other ranks do not exist: its collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "localhost"}
    os.environ |= {"LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_PORT": "1"}
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())


def main(words: Sequence[str]) -> int:
    """Print the table; the exit code is 1 if a story is not linear."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.growth", description=__doc__)
    parser.add_argument("stories", nargs="*", metavar="STORY", help=f"any of: {', '.join(NAMES)}")
    stories = parser.parse_args(words).stories or list(NAMES)
    unknown = sorted(set(stories) - set(NAMES))
    if unknown:
        parser.error(f"unknown story `{unknown[0]}`; known: {', '.join(NAMES)}")
    print(f"{'story':<20}{'size':>8}{'calls at 1, 2, 4 times the size':>36}{'exponent':>10}{'seconds':>22}")
    is_linear = True
    for name in stories:
        one = measured(name)
        is_linear &= one.exponent <= LIMIT
        calls = "".join(f"{number:>12,}" for number in one.calls)
        seconds = " ".join(f"{number:.3f}" for number in one.seconds)
        print(f"{name:<20}{one.sizes[0]:>8,}{calls}{one.exponent:>10.2f}{seconds:>22}", flush=True)
    return 0 if is_linear else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
