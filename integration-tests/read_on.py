"""Read two epochs of shuffled data, killed twice on the way; each time another number of ranks goes on.

`python read_on.py FOLDER 2:70 3:450 1` forks two ranks, kills them as soon as 70 samples have been read, lets three
ranks go on to 450 and one to the end. `FOLDER/progress.json` holds the state after the last whole step and the samples
so far, always of the same moment. Every rank has workers, and all die by SIGKILL.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from accel import Accelerator

SIZE = 400
EPOCHS = 2


def given():
    torch.manual_seed(11)
    return DataLoader(torch.arange(SIZE), batch_size=3, shuffle=True, num_workers=2)


def read_on(progress, told):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(given())
    stream = []
    if progress.exists():
        saved = json.loads(progress.read_text())
        stream = saved["stream"]
        loader.load_state_dict(saved["state"])
    while loader.iteration < EPOCHS:
        for batch in loader:
            stream += accelerator.gather_for_metrics(batch).tolist()
            if accelerator.is_main_process:
                beside = progress.with_suffix(".next")
                beside.write_text(json.dumps({"state": loader.state_dict(), "stream": stream}))
                beside.replace(progress)
                os.write(told, b"%d\n" % len(stream))
    accelerator.end_training()


def fork(rank, num_ranks, port, progress, told):
    child = os.fork()
    if child:
        return child
    os.setsid()  # so that its workers can be killed with it
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        read_on(progress, told)
    except BaseException:  # noqa: BLE001 - the parent's code must not run in a child
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run(progress, num_ranks, kill_at):
    """Run one leg; with ``kill_at`` kill everything once that many samples are in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hears, told = os.pipe()
    ranks = [fork(rank, num_ranks, port, progress, told) for rank in range(num_ranks)]
    os.close(told)
    with open(hears) as lines:
        for line in lines:
            if kill_at is not None and int(line) >= kill_at:
                for rank in ranks:
                    os.killpg(rank, signal.SIGKILL)
                break
    ends = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    assert ends == [0 if kill_at is None else -signal.SIGKILL] * num_ranks, ends


def main(folder, *legs):
    os.environ["OMP_NUM_THREADS"] = "1"
    for leg in legs:
        num_ranks, _, kill_at = leg.partition(":")
        run(Path(folder) / "progress.json", int(num_ranks), int(kill_at) if kill_at else None)
        print(leg, len(json.loads((Path(folder) / "progress.json").read_text())["stream"]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:] or (tempfile.mkdtemp(), "2:70", "3:450", "1"))
