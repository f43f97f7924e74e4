"""A run written as JSON lines and by a tracker of one's own: accel-trackers in a plain loop.

python trackers.py FOLDER
torchrun --nproc_per_node 2 trackers.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch

from accel_trackers import BackgroundLog, GeneralTracker, filter_trackers, on_main_process, start_trackers

folder = Path(sys.argv[1])


class BestTracker(GeneralTracker):
    """Keeps the smallest value of each metric in a file."""

    name = "best"
    requires_logging_directory = False

    @on_main_process
    def __init__(self, file):
        super().__init__()
        self.file, self.best = file, {}

    @property
    def tracker(self):
        return self.best

    @on_main_process
    def log(self, values, step=None, **kwargs):
        for name, value in values.items():
            self.best[name] = min(float(value), self.best.get(name, float("inf")))

    @on_main_process
    def finish(self):
        self.file.write_text(json.dumps(self.best))


chosen = filter_trackers(["jsonl", BestTracker(folder / "best.json")], logging_dir=folder)
trackers = start_trackers(chosen, "fit", logging_dir=folder, config={"lr": 0.1})
log = BackgroundLog(trackers)
weight = torch.tensor(0.0, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(10):
    loss = (weight - 3).square()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    log.log({"loss": loss}, step=step)
log.close()
for tracker in trackers:
    tracker.finish()
