"""Checks of a set-up, which ``accel test`` launches like a script.

Every check runs on every rank, with the devices, processes, precision and engine of the launch. The main
process prints the results; a failed check is printed with its rank and the reason, and the exit code is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, TensorDataset

from accel.accelerator import Accelerator
from accel.profiling import device_name
from accel_data import prepare_data_loader
from accel_ops import broadcast, gather, gather_object, pad_across_processes, reduce, set_seed

_SAMPLES = 44  # not a multiple of what the ranks take at a time, so that the end of the data is met
_BATCH = 4
_FEATURES = 16  # 8-bit products need multiples of 16


class CheckError(Exception):
    """A check has failed."""


def expect(condition: object, text: str) -> None:
    """Fail the check with ``text`` unless ``condition`` is true.

    Raises:
        CheckError: If it is false.
    """
    if not condition:
        raise CheckError(text)


def check_processes(accelerator: Accelerator) -> str:
    """Ranks have no gaps, one is the main process, and items are split completely. Every rank must call it."""
    ranks = gather_object([accelerator.process_index])
    expect(ranks == list(range(accelerator.num_processes)), f"the ranks are {ranks}")
    mains = gather_object([accelerator.is_main_process])
    expect(mains.count(True) == 1, f"{mains.count(True)} processes have `is_main_process` set")
    items = list(range(2 * accelerator.num_processes + 1))
    with accelerator.split_between_processes(items) as mine:
        parts = gather_object(list(mine))
    expect(sorted(parts) == items, f"{items} was divided into {parts}")
    accelerator.wait_for_everyone()
    places = gather_object([f"{accelerator.device} {device_name(accelerator.device)}".strip()])
    return f"{accelerator.num_processes} process(es) on {', '.join(dict.fromkeys(places))}"


def check_collectives(accelerator: Accelerator) -> str:
    """Gather, reduce, broadcast and pad return the expected values. Every rank must call it."""
    rank, size = accelerator.process_index, accelerator.num_processes
    mine = torch.full((2,), float(rank), device=accelerator.device)
    everyone = gather(mine)
    expected = torch.arange(size, dtype=torch.float).repeat_interleave(2).to(accelerator.device)
    expect(torch.equal(everyone, expected), f"gathered {everyone.tolist()}, expected {expected.tolist()}")
    total = reduce(mine.clone(), "sum")
    expect(total.tolist() == [size * (size - 1) / 2] * 2, f"the sum is {total.tolist()}")
    first = broadcast(mine + 5, from_process=0)
    expect(first.tolist() == [5.0, 5.0], f"broadcast gave {first.tolist()}")
    padded = pad_across_processes(torch.ones(rank + 1, device=accelerator.device))
    expect(len(padded) == size and padded.sum() == rank + 1, f"padded to {padded.tolist()}")
    return "gather, reduce, broadcast and pad agree"


def check_random_numbers(accelerator: Accelerator) -> str:
    """One seed gives the same numbers on all ranks. Every rank must call it."""
    set_seed(7)
    drawn = gather(torch.rand(1).to(accelerator.device))
    expect(torch.equal(drawn, drawn[:1].expand_as(drawn)), f"one seed gave {drawn.tolist()}")
    return "one seed, the same numbers"


def check_loaders(accelerator: Accelerator) -> str:
    """Every sample is read once, sharded or dispatched, also if the data end unevenly."""
    samples = torch.arange(_SAMPLES)
    for dispatch in (False, True):
        loader = prepare_data_loader(
            DataLoader(TensorDataset(samples), batch_size=_BATCH),
            device=accelerator.device,
            put_on_device=True,
            dispatch_batches=dispatch,
        )
        seen = torch.cat([accelerator.gather_for_metrics(batch[0]) for batch in loader]).cpu()
        way = "dispatched" if dispatch else "sharded"
        expect(torch.equal(seen.sort().values, samples), f"the {way} loader gave {sorted(seen.tolist())}")
    return f"{_SAMPLES} samples, each seen once"


def check_training(accelerator: Accelerator) -> str:
    """Training on all ranks equals training on one rank with the same global batches."""
    expected = _trained_alone(accelerator.num_processes)
    model, optimizer, loader = _model_and_data(accelerator.num_processes, batch_size=_BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    state = accelerator.get_state_dict(model)
    trained = torch.cat([tensor.float().flatten().cpu() for tensor in state.values()]) if state else expected
    # (an engine that shards may hand the weights to one rank only; the others have nothing to compare)
    # The sum over ranks is rounded in another order; half precision keeps three digits.
    tolerance = 1e-5 if accelerator.mixed_precision == "no" else 3e-2
    distance = float((trained - expected).abs().max())
    expect(distance <= tolerance, f"parameters differ by {distance:.2g} from training in one process")
    return f"{accelerator.distributed_type}, {accelerator.mixed_precision}: as in one process"


def _model_and_data(
    num_processes: int, *, batch_size: int
) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[object]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8 * _BATCH * num_processes, _FEATURES, generator=generator)
    targets = inputs.flip(1) + 0.1
    model = torch.nn.Linear(_FEATURES, _FEATURES)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.zero_()
    loader: DataLoader[object] = DataLoader(TensorDataset(inputs, targets), batch_size=batch_size)
    return model, torch.optim.SGD(model.parameters(), lr=0.05), loader


def _trained_alone(num_processes: int) -> torch.Tensor:
    model, optimizer, loader = _model_and_data(num_processes, batch_size=_BATCH * num_processes)
    for inputs, targets in loader:
        torch.autograd.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


CHECKS: tuple[Callable[[Accelerator], str], ...] = (
    check_processes,
    check_collectives,
    check_random_numbers,
    check_loaders,
    check_training,
)


def main() -> int:
    """Run all checks; return 0 if they pass, else 1 at the first that does not."""
    accelerator = Accelerator()
    for check in CHECKS:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            result = check(accelerator)
        except CheckError as problem:
            sys.stderr.write(f"FAILED {name}, rank {accelerator.process_index}: {problem}\n")
            return 1
        accelerator.print(f"ok     {name}: {result}")
    accelerator.print("This set-up works.")
    accelerator.end_training()
    return 0


if __name__ == "__main__":
    sys.exit(main())
