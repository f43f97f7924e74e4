"""Running functions in forks through torch's elastic agent, and saying which of them failed first."""

from __future__ import annotations

import json
import logging
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_launch.notebook.debugging import FORKED
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.signals import known_signals
from accel_launch.reports.run_report import RankEnding, make_report
from accel_state.environment import patch_environment, read
from accel_state.errors import LaunchError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

# What torch's agent handles, as long as it runs and beyond.
_AGENT_SIGNALS = known_signals("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


def run_elastically(rank: ElasticRank, args: Sequence[Any], settings: Mapping[str, Any]) -> None:
    """Run ``rank`` in forks of this process, which ``settings`` (of torch's `LaunchConfig`) describe.

    Raises:
        LaunchError: If a process fails.
        KeyboardInterrupt: If somebody interrupts it.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    known = {name: value for name, value in settings.items() if value is not None}
    # In a store that agent and ranks share, the next attempt may hang on keys of the one before (torch 2.13).
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if settings["max_restarts"] else {}
    with (
        tempfile.TemporaryDirectory(prefix="accel-notebook-") as folder,
        _own_signal_handlers(),
        _elastic_log_only_if_asked(),
        patch_environment(**variables),
    ):
        config = LaunchConfig(**known, logs_specs=DefaultLogsSpecs(log_dir=folder))
        try:
            elastic_launch(config, rank)(*args)
        except ChildFailedError as error:
            raise _ranks_failed_error(_first_cause(error, Path(folder)), error) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise


def _ranks_failed_error(message: str, found: ChildFailedError) -> LaunchError:
    """Return an error of ours that is torch's too: code written for torch's launcher catches that."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    class RanksFailedError(LaunchError, ChildFailedError):
        """A rank failed; the message says which failed first, and with what."""

    error = RanksFailedError(found.name, found.failures)
    error.args = (message,)
    return error


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Put the handlers of the notebook's kernel back afterwards; torch's agent leaves its own."""
    before = {signum: signal.getsignal(signum) for signum in _AGENT_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in before.items():
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _elastic_log_only_if_asked() -> Iterator[None]:
    """Leave out what torch's agent writes of a failure at length; ``ACCELERATE_DEBUG_MODE=yes`` shows it."""
    logger = logging.getLogger("torch.distributed.elastic")
    before = logger.level
    try:
        if not read("debug_mode"):
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        logger.setLevel(before)


def _first_cause(error: ChildFailedError, folder: Path) -> str:
    """Say which rank failed first. torch names the one that ended first, which may only have lost its peer."""
    rank, failure = error.get_first_failure()
    endings = {rank: ChildEnding(failure.exitcode, failure.timestamp + 1.0)}  # torch rounds the time down
    attempts = sorted(folder.rglob("attempt_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    for file in attempts[-1].glob("*/error.json"):
        told = json.loads(file.read_text())["message"]["extraInfo"]
        place = rank - failure.local_rank + int(file.parent.name)
        lines = tuple(told["py_callstack"].splitlines())
        endings[place] = ChildEnding(1, float(told["timestamp"]), last_lines=lines)
    first = make_report([RankEnding(place, "", ending) for place, ending in endings.items()]).first
    if first is None:
        return f"Rank {rank} was interrupted."
    if first.exception is None:
        return f"Rank {first.rank} failed first: it {first.reason}."
    return "\n".join([f"Rank {first.rank} failed first: {first.exception.describe()}.", *first.last_lines])


class ElasticRank:
    """The function of an elastic run: torch's agent has said who it is."""

    def __init__(self, function: Callable[..., Any], variables: Mapping[str, str]) -> None:
        self.function = function
        self.variables = dict(variables)
        self.__name__ = self.__qualname__ = "notebook_function"  # torch names the entry point by it

    def __call__(self, *args: Any) -> Any:
        """Call the function, where signals do what they do in any process and not what they do in the agent."""
        signal.set_wakeup_fd(-1)  # the kernel's loop must not hear of signals for this process
        for signum in _AGENT_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with patch_environment(**self.variables, **FORKED):
            return self.function(*args)
