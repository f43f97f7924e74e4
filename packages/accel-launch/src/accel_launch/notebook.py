"""Starting functions instead of scripts: `notebook_launcher` and `debug_launcher`.

The one module of the package that runs in a process with torch: the processes are forked, so that they have
what the notebook has defined. torch itself is imported when a launcher is called.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from accel_launch.gpu_users import has_used_gpu, import_that_uses_gpu
from accel_launch.gpus import visible_gpus
from accel_launch.launchers.ports import held_port
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.forking import require_fork
from accel_launch.processes.signals import known_signals
from accel_launch.reports.run_report import RankEnding, make_report
from accel_state.environment import find_setting, patch_environment, read, snapshot
from accel_state.errors import ConfigError, LaunchError, StateError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_FORKED = {"FORK_LAUNCHED": "1"}  # what `PartialState.fork_launched` is read from
# What torch's agent handles, as long as it runs and beyond.
_AGENT_SIGNALS = known_signals("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


class Rank:
    """What a forked process does: learn who it is, then call the function. Sent to torch's launchers."""

    def __init__(self, function: Callable[..., Any], variables: Mapping[str, str]) -> None:
        self.function = function
        self.variables = dict(variables)

    def __call__(self, index: int, *args: Any) -> Any:
        """Call the function as local rank ``index``."""
        own = {"LOCAL_RANK": str(index), "RANK": str(index), **_FORKED}
        with patch_environment(**(self.variables | own)):
            return self.function(*args)


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str | int = "29500",
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> None:
    """Train with several processes from a notebook, with what the notebook has defined.

    Args:
        function: What each process runs; it should make its own `Accelerator`.
        args: Positional arguments for it.
        num_processes: Processes on this machine: one for each GPU, or 1, if None. On a machine without GPUs they
            run on the CPU.
        mixed_precision: ``no``, ``fp16``, ``bf16`` or ``fp8``.
        use_port: Where the processes meet; 0 for a free one (on one machine).
        master_addr: Address of the machine with ``node_rank`` 0.
        node_rank: Place of this machine among ``num_nodes``.
        num_nodes: Number of machines; this must be called on each.
        rdzv_backend: ``static``, ``c10d``, ... for torch's elastic agent.
        rdzv_endpoint: Where the machines meet; from ``master_addr`` and ``use_port`` if empty.
        rdzv_conf: Further settings of the rendezvous.
        rdzv_id: Name of the run.
        max_restarts: How often the processes are started again after a failure.
        monitor_interval: Seconds between two looks at the processes.
        log_line_prefix_template: What stands before each line that a process writes to a log.

    Blocks until all processes have ended. With ``ACCELERATE_DEBUG_MODE=yes`` it tries first whether a forked
    process can use a GPU at all.

    Raises:
        ConfigError: If a value is wrong.
        NotAvailableError: For several processes on Windows, which cannot fork.
        LaunchError: If a process fails; it says which failed first, and with what. It is a `ChildFailedError` of
            torch, too.
        StateError: If this process has used a GPU or built an `Accelerator` already, so that it cannot be forked;
            it names the import that used the GPU, if one did.
    """
    _check(mixed_precision, node_rank=node_rank, num_nodes=num_nodes)
    if "torch_xla" in sys.modules or "PJRT_DEVICE" in snapshot():
        _run_on_tpu(function, args, num_processes=num_processes, mixed_precision=mixed_precision)
        return
    gpus = visible_gpus(snapshot())
    number = num_processes or len(gpus) or 1
    if number < 1:
        raise ConfigError(f"`num_processes` must be at least 1, got {number}.")
    if gpus and number > len(gpus):
        raise ConfigError(f"`num_processes` is {number}, but this machine has {len(gpus)} GPUs.")
    settings = {"ACCELERATE_MIXED_PRECISION": mixed_precision}
    if number == num_nodes == 1:
        with patch_environment(**settings):
            function(*args)
        return
    require_fork("`notebook_launcher` with several processes")
    _check_no_accelerator("notebook_launcher")
    if gpus:
        _check_gpus_survive_a_fork()
    else:
        settings["ACCELERATE_USE_CPU"] = "yes"
    port = int(use_port)
    if num_nodes == 1 and not rdzv_endpoint:
        with held_port(port or None, asked_with="use_port") as port:
            pass
    _run_elastically(
        ElasticRank(function, settings),
        args,
        {
            "min_nodes": num_nodes,
            "max_nodes": num_nodes,
            "nproc_per_node": number,
            "run_id": rdzv_id,
            "rdzv_endpoint": rdzv_endpoint or f"{master_addr}:{port}",
            "rdzv_backend": rdzv_backend,
            "rdzv_configs": dict(rdzv_conf or {}) | ({"rank": node_rank} if rdzv_backend == "static" else {}),
            "max_restarts": max_restarts,
            "monitor_interval": monitor_interval,
            "log_line_prefix_template": log_line_prefix_template,
            "start_method": "fork",
        },
    )


def debug_launcher(function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2) -> None:
    """Run a function in some processes on the CPU, to try out what it does in several.

    Args:
        function: What each process runs.
        args: Positional arguments for it.
        num_processes: How many.

    Blocks until all have ended; the exception of one that fails is raised here. Windows, which cannot fork, raises a
    `NotAvailableError`.
    """
    require_fork("`debug_launcher`")
    _check_no_accelerator("debug_launcher")
    from torch.multiprocessing.spawn import start_processes

    with tempfile.TemporaryDirectory(prefix="accel-debug-") as folder, held_port(None) as port:
        variables = {
            "ACCELERATE_DEBUG_RDV_FILE": str(Path(folder) / "meeting"),
            "ACCELERATE_USE_CPU": "yes",
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(num_processes),
        }
        rank = Rank(function, variables)
        # torch leaves this function unannotated
        start_processes(rank, args=tuple(args), nprocs=num_processes, start_method="fork")  # type: ignore[no-untyped-call]


def _check(mixed_precision: str, *, node_rank: int, num_nodes: int) -> None:
    find_setting("mixed_precision").value_of(mixed_precision, source="mixed_precision")
    if num_nodes < 1 or not 0 <= node_rank < num_nodes:
        raise ConfigError(f"`node_rank` is {node_rank}, but it must lie below `num_nodes`, {num_nodes}.")


def _check_no_accelerator(launcher: str) -> None:
    from accel_state.runtime import has_runtime

    if has_runtime():
        raise StateError(
            f"An `Accelerator` was built in this notebook before `{launcher}`, so its processes cannot be "
            "forked from here. Build it within the function that is launched, and restart the notebook's kernel."
        )


def _check_gpus_survive_a_fork() -> None:
    if has_used_gpu(sys.modules):
        culprit = import_that_uses_gpu(sys.modules) or "code of this notebook (no import does it by itself)"
    elif read("debug_mode") and not _can_fork_use_gpu():
        culprit = import_that_uses_gpu(sys.modules) or "something that torch does not know of"
    else:
        return
    raise StateError(
        f"A GPU was used before `notebook_launcher`, by {culprit}, so processes cannot be forked from here. "
        "Move what uses it into the function that is launched, and restart the notebook's kernel."
    )


def _can_fork_use_gpu() -> bool:
    from torch.multiprocessing.spawn import ProcessException, start_processes

    try:
        # torch leaves this function unannotated
        start_processes(_use_gpu, nprocs=1, start_method="fork")  # type: ignore[no-untyped-call]
    except ProcessException:
        return False
    return True


def _use_gpu(index: int) -> None:
    import torch

    torch.ones(1, device=torch.accelerator.current_accelerator() or "cuda")


def _run_elastically(rank: ElasticRank, args: Sequence[Any], settings: Mapping[str, Any]) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    known = {name: value for name, value in settings.items() if value is not None}
    # See `ElasticLauncher`: otherwise the next attempt may hang on keys of the one before.
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
        with patch_environment(**self.variables, **_FORKED):
            return self.function(*args)


class CoreFunction:
    """The function of a TPU's cores. ``torch_xla`` pickles it even for forks, which have it already: by its number.

    A context manager: within it, processes that are forked know the function.
    """

    _known: ClassVar[dict[int, Callable[[], Any]]] = {}

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], variables: Mapping[str, str]
    ) -> None:
        self.number = id(self)
        self._call = partial(_call_with, dict(variables), function, *args)

    def __enter__(self) -> CoreFunction:
        self._known[self.number] = self._call
        return self

    def __exit__(self, *exception: object) -> None:
        del self._known[self.number]

    def __getstate__(self) -> dict[str, int]:
        return {"number": self.number}

    def __call__(self, index: int) -> None:
        """Call the function as core ``index``."""
        self._known[self.number]()


def _call_with(variables: Mapping[str, str], function: Callable[..., Any], *args: Any) -> None:
    with patch_environment(**variables):
        function(*args)


def _run_on_tpu(
    function: Callable[..., Any], args: Sequence[Any], *, num_processes: int | None, mixed_precision: str
) -> None:
    import torch_xla

    with CoreFunction(function, args, {"ACCELERATE_MIXED_PRECISION": mixed_precision}) as on_core:
        # Its default, `spawn`, starts processes that do not know what the notebook has defined.
        torch_xla.launch(on_core, start_method="fork", debug_single_process=num_processes == 1)
