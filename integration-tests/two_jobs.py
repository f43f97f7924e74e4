"""Two jobs save to one folder while a third loads it.

Each save has one value everywhere, another than all other saves. A load has the values of one save, or raises an error
that says that another job replaces the checkpoint; every save succeeds, and the last one has the right digests.
"""

import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from preloaded import ACCEL
from torch import nn

from accel import Accelerator
from accel_checkpoint.listing import check_loadable
from accel_checkpoint.ranks.agreement import ReplacedError

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, if this is run by hand
from tools.harness.scripts import Script

LIMIT_S = 300


def build():
    accelerator = Accelerator(cpu=True)
    models = [nn.Linear(200, 200) for _ in range(2)]
    optimizer = torch.optim.SGD([one for m in models for one in m.parameters()], lr=0.1, momentum=0.9)
    *models, optimizer = accelerator.prepare(*models, optimizer)
    accelerator.backward(sum(model(torch.ones(1, 200)).sum() for model in models))
    optimizer.step()
    parameters = [one for model in models for one in model.parameters()]
    return (
        accelerator,
        [*parameters, *(optimizer.state[one]["momentum_buffer"] for one in parameters)],
        optimizer,
    )


def fill(parts, value):
    with torch.no_grad():
        for part in parts:
            part.fill_(value)


def save_until_told(folder, first, form):
    """Save the values ``first``, ``first`` + 2 and so on until there is a file `stop`."""
    accelerator, parts, _ = build()
    value = first
    while not (folder / "stop").exists():
        fill(parts, value)
        accelerator.save_state(folder / "latest", checkpoint_format=form)
        value += 2
        (folder / f"saved-{first}").touch()
    print(f"saved {(value - first) // 2}")


def load_while_saved(folder, *, num, verify):
    """Load ``num`` times, and print how many loads were of one save, replaced, or mixed."""
    warnings.simplefilter("ignore")
    accelerator, parts, optimizer = build()
    counts = {"whole": 0, "replaced": 0, "mixed": 0}
    for _ in range(num):
        fill(parts, -1)
        try:
            accelerator.load_state(folder / "latest", verify=verify)
        except ReplacedError:
            counts["replaced"] += 1
            continue
        momenta = [state["momentum_buffer"] for state in optimizer.optimizer.state.values()]
        parts = [*parts[: len(parts) // 2], *momenta]
        values = {value for part in parts for value in part.unique().tolist()}
        counts["whole" if len(values) == 1 else "mixed"] += 1
    print(*counts.values())


def outcome(*, num, verify, form):
    """Return how many loads were of one save, replaced, or mixed, and how many saves there were meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writers = [start("save", folder, str(first), form) for first in (0, 1)]
        reader = None
        try:
            wait_until(lambda: all((folder / f"saved-{first}").exists() for first in (0, 1)), writers)
            reader = start("load", folder, str(num), "verify" if verify else "")
            wait_until(lambda: reader.process.poll() is not None, [])
            (folder / "stop").touch()
            wait_until(lambda: all(one.process.poll() is not None for one in writers), [])
            codes = [one.process.poll() for one in (*writers, reader)]
            assert codes == [0, 0, 0], "".join(one.describe() for one in (*writers, reader))
            check_loadable(folder / "latest", verify=True)
            counts = [int(count) for count in reader.stdout.split()]
            return [*counts, sum(int(one.stdout.split()[-1]) for one in writers)]
        finally:
            for one in (*writers, *([reader] if reader else [])):
                one.close()


def start(role, folder, *arguments):
    return Script([__file__, role, str(folder), *arguments], preload=ACCEL)


def wait_until(is_so, running):
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, "a job does not come to its end"
        assert all(one.process.poll() is None for one in running), "".join(one.describe() for one in running)
        time.sleep(0.01)


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save_until_told(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        load_while_saved(Path(sys.argv[2]), num=int(sys.argv[3]), verify=bool(sys.argv[4]))
