"""A short training that logs with a service for real, offline, in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from tools.harness.fork_server import fork_server
from tools.harness.scripts import run_script, start_ranks, wait_for_ranks

# Nothing is sent anywhere, and nobody is counted.
QUIET = {
    "AIM_DISABLE_TELEMETRY": "1",
    "CI": "1",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
}

# What takes long to import, and starts no threads: imported once for all tests of a service.
PRELOADED = {"mlflow": ("mlflow", "mlflow.store.tracking.sqlalchemy_store")}

TRAINING = """
import os
os.chdir({folder!r})
import torch
from accel_state import PartialState
from accel_trackers import BackgroundLog, start_trackers

{before}
config = {{"lr": 0.1, "layers": [8, 8], "data": {{"name": "digits"}}, "model": torch.nn.ReLU(), "seed": None}}
trackers = start_trackers(
    [{name!r}], "digits", logging_dir="runs", config=config, init_kwargs={{{name!r}: {kwargs!r}}}
)
(tracker,) = trackers
log = BackgroundLog(trackers)
for step in range(3):
    loss = torch.tensor(1 / 2**step)
    log.log({{"loss": loss, "accuracy": {{"train": step, "test": 2.5 * step}}}}, step=step)
    loss.zero_()
{body}
"""
IN_THE_END = """
log.close()
tracker.finish()
"""


ON_EACH_RANK = """
from accel_state import PartialState
from accel_trackers import BackgroundLog, start_trackers

rank = PartialState(cpu=True).process_index
kwargs = {{"main_process_only": False, "group": "first", **{kwargs!r}}}
trackers = start_trackers([{name!r}], "digits", init_kwargs={{{name!r}: kwargs}})
log = BackgroundLog(trackers)
log.log({{"rank": rank}}, step=0)
log.close()
trackers[0].finish()
PartialState().destroy_process_group()
"""


@pytest.fixture
def train_on_two_ranks(tmp_path: Path) -> Callable[..., None]:
    """Return a function that runs two ranks in ``tmp_path``, each of which logs its rank to a separate run."""

    def run(name: str, kwargs: Mapping[str, object], *, env: Mapping[str, str]) -> None:
        script = tmp_path / "train.py"
        script.write_text(ON_EACH_RANK.format(name=name, kwargs=dict(kwargs)))
        with start_ranks([script], 2, env=QUIET | {"HOME": str(tmp_path), **env}, cwd=tmp_path) as ranks:
            assert wait_for_ranks(ranks) == 0, [rank.stderr for rank in ranks]

    return run


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs the training in ``tmp_path`` and returns what it printed.

    Args of it:
        name: The tracker.
        kwargs: For its class.
        body: Further lines, with ``tracker`` and ``log``, after the values of three steps are logged.
        before: Lines before everything.
        env: Variables of the service.
        ends: Whether the trackers are closed in the end; otherwise the script ends with an exception.
    """

    def run(
        name: str,
        kwargs: Mapping[str, object],
        body: str = "",
        *,
        before: str = "",
        env: Mapping[str, str] | None = None,
        ends: bool = True,
    ) -> str:
        script = tmp_path / "train.py"
        end = IN_THE_END if ends else "raise ValueError('training went wrong')"
        script.write_text(
            TRAINING.format(
                folder=str(tmp_path),
                name=name,
                kwargs=dict(kwargs),
                before=dedent(before),
                body=dedent(body) + "\n" + dedent(end),
            )
        )
        home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        preload = PRELOADED.get(name, ())
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in QUIET.items():
                patch.setenv(variable, value)
            fork_server(preload)  # which begins with these variables, should it not run yet
        done = run_script(
            script,
            env={**QUIET, **home, **(env or {}), "ACCEL_TEST_MARK": str(tmp_path)},
            timeout_s=150,
            preload=preload,
        )
        assert (done.returncode == 0) == ends, done.stderr
        assert ends or "ValueError: training went wrong" in done.stderr
        assert left_behind(tmp_path) == []
        return done.stdout

    return run


def left_behind(folder: Path) -> list[str]:
    """Return the processes that still run and were started by a training in ``folder``."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ACCEL_TEST_MARK") == str(folder):
                process.wait(timeout=10)
        except psutil.TimeoutExpired:
            left.append(" ".join(process.cmdline()))
            process.kill()
        except psutil.Error:
            continue
    return left
