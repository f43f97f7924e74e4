"""What users call costs at most linearly more with more tensors, samples, leaves or ranks.

Calls of Python and C functions are counted at a size, at twice and at four times it, so that the result does not depend
on the machine or its load. The exponent of the increase is 0 if the cost is constant, 1 if it is linear, 2 if there is
a loop in a loop. Run as a script, this file counts the stories that are named.
"""

import json
import math
import os
import sys
import tempfile
import threading
import warnings
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

pytestmark = pytest.mark.engine("long")

NOISE = 0.03
"""Share of the calls, at the largest size, that may be due to chance: threads that wait, caches."""
IMPORTED = (
    "accel.accelerator",
    "accel_backends.strategies.fsdp2",
    "accel_bigmodel.dispatch",
    "accel_data.prepare",
)


def exponent_of(counts):
    """Return the exponent of what three counts, each at twice the previous size, without their constant part."""
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    if second <= NOISE * counts[2]:
        return 0.0
    return math.log2(second / max(first, 1))


def count_calls(work):
    """Return how many functions of Python and C ``work`` calls, on this thread and the threads that it starts."""
    numbers = {}

    def count(_frame, event, _arg):
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

    def __init__(self, num_tensors):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(10)]) for _ in range(num_tensors // 10)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Numbers(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def new_accelerator():
    from accel import Accelerator

    return Accelerator(cpu=True)


def train_step(size, folder):
    """Backward pass, clipping and step of as many tensors."""
    accelerator = new_accelerator()
    model = Blocks(size)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), foreach=True))

    def step():
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return step


def load_and_dispatch(size, folder):
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


def device_map(size, folder):
    """Plan where as many tensors go, half of them to the disk."""
    from accel import infer_auto_device_map

    model = Blocks(size)
    return lambda: infer_auto_device_map(model, max_memory={"cpu": size * 8, "disk": 10**9})


def first_batch(size, folder):
    """The first shuffled batch of as many samples."""
    loader = new_accelerator().prepare(torch.utils.data.DataLoader(Numbers(size), batch_size=8, shuffle=True))
    return lambda: next(iter(loader))


def skipped_batches(size, folder):
    """The first batch after half of as many samples, skipped."""
    accelerator = new_accelerator()
    loader = accelerator.prepare(torch.utils.data.DataLoader(Numbers(size), batch_size=8, shuffle=True))
    return lambda: next(iter(accelerator.skip_first_batches(loader, size // 16)))


def gather(size, folder):
    """Gather a nested batch of as many leaves from two ranks."""
    start_fake_group(2)
    accelerator = new_accelerator()
    batch = {str(number): {"x": [torch.ones(2)] * 10} for number in range(size // 10)}
    return lambda: accelerator.gather(batch)


def device_mesh(size, folder):
    """Build the device mesh of as many ranks."""
    from accel import ParallelismConfig

    start_fake_group(size)
    config = ParallelismConfig(dp_replicate_size=size // 8, dp_shard_size=4, tp_size=2)
    return lambda: config.build_device_mesh("cpu")


def store_round(size, folder):
    """The slowest rank's requests in a round of a save, of as many ranks: called again for each request."""
    from torch._C._distributed_c10d import PrefixStore

    from accel_checkpoint.ranks.agreement import StoreAgreement, first

    class Counting(PrefixStore):
        num_requests = 0

        def __getattribute__(self, name):
            if name in ("set", "get", "add", "multi_get", "delete_key"):  # not `check`, which waits
                Counting.num_requests += 1
            return super().__getattribute__(name)

    class Present:
        num_bytes = 0

        def ended(self, ranks):
            return []

    store = dist.HashStore()

    def run(rank):
        own = Counting("round", store) if rank in (0, size - 1) else PrefixStore("round", store)
        agreement = StoreAgreement(own, rank=rank, world_size=size, deadline_s=60, presence=Present())
        agreement.agree("written", "report", first)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lambda: [abs(1) for _ in range(Counting.num_requests)]


def start_fake_group(num_ranks):
    """Start torch's fake process group, whose other ranks do not exist: its collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "localhost"}
    os.environ |= {"LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_PORT": "1"}
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())


STORIES = {
    train_step: 200,
    load_and_dispatch: 100,
    device_map: 200,
    first_batch: 10_000,  # the order of an epoch is a list
    skipped_batches: 10_000,
    gather: 500,
    device_mesh: 64,
    store_round: 8,
}
"""Each with its smallest size."""
NAMES = {story.__name__: story for story in STORIES}
SET_UP_ONCE = (gather, device_mesh, store_round)  # in a process


def counted(name, size):
    """Return the calls of a story at a size, in a fork of this process."""
    receiving, sending = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=measure, args=(NAMES[name], size, sending))
    process.start()
    sending.close()
    calls = receiving.recv()
    process.join()
    return calls


def measure(story, size, sending):
    from accel_state import AcceleratorState

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="accel-growth-") as folder:
        roots = [Path(folder, number) for number in "ab"]
        for root in roots:
            root.mkdir()
        if story not in SET_UP_ONCE:
            story(STORIES[story], roots[0])()  # imports and caches
            AcceleratorState._reset_state(True)
        sending.send(count_calls(story(size, roots[1])))
        sending.close()
    os._exit(0)  # the process exits: threads and groups of the run need no cleanup


def exponent_of_calls(work):
    return exponent_of([count_calls(lambda size=size: work(size)) for size in (20, 40, 80)])


def test_a_loop_in_a_loop_is_seen_next_to_a_large_constant():
    def quadratic(size):
        for _ in range(30_000):
            abs(1)
        for _ in range(size * size):
            abs(1)

    assert exponent_of_calls(quadratic) == pytest.approx(2, abs=0.01)
    assert exponent_of_calls(lambda size: [abs(1) for _ in range(5 * size)]) == pytest.approx(1, abs=0.01)
    assert exponent_of_calls(lambda _: [abs(1) for _ in range(5000)]) == 0


def test_what_users_call_is_at_most_linear():
    from tools.harness.scripts import run_script

    calls = json.loads(run_script(Path(__file__), *NAMES).stdout.splitlines()[-1])
    exponents = {name: exponent_of(numbers) for name, numbers in calls.items()}
    assert exponents.pop("store_round") == 0, calls
    assert {name: one for name, one in exponents.items() if one > 1.1} == {}, calls


if __name__ == "__main__":
    for module in IMPORTED:
        import_module(module)  # once, before the forks
    print(
        json.dumps(
            {
                name: [counted(name, STORIES[NAMES[name]] * times) for times in (1, 2, 4)]
                for name in sys.argv[1:]
            }
        )
    )
