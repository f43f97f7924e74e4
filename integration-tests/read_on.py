"""Read two epochs of shuffled data with workers, continuing from where an earlier run was killed.

`read_on.py PROGRESS [PAUSE_AT]`: the file PROGRESS holds the loader's state after the last complete step and
the samples so far, always of the same moment. Once PAUSE_AT samples have been read, all ranks wait to be killed.
"""

import json
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from accel import Accelerator

SIZE = 400
EPOCHS = 2


def given():
    # With a separate generator, the state of the loader is all that later epochs depend on.
    generator = torch.Generator().manual_seed(11)
    return DataLoader(torch.arange(SIZE), batch_size=3, shuffle=True, num_workers=2, generator=generator)


def read_on(progress, pause_at):
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
            if len(stream) >= pause_at:
                print("pausing", flush=True)
                signal.pause()
    accelerator.end_training()


if __name__ == "__main__":
    read_on(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize)
