"""The pytest plug-in: the `world` fixture, fresh state, and leak checks around every test.

The `conftest.py` of the checkout loads it. A test that has to change variables is marked
``@pytest.mark.leaks_environment("NAME", …)``; they are restored after it. Where the ranks of a file import a large
library, ``@pytest.mark.preload("peft", …)`` imports it once, in the process that they are forked from.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Any

import pytest

from accel_state.environment import export
from tools.harness.device import device_type
from tools.harness.leaks import ProcessSnapshot, freeze_imported_objects, has_process_group, reset_libraries
from tools.harness.world import World

MOST_RANKS_OF_A_GPU = 4
"""Each takes a gigabyte of its memory before it has a model."""
_Worlds = dict[tuple[int, tuple[str, ...]], World]
_worlds: _Worlds = {}


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and let Ctrl-C reach what tests start even if the tests run in the background."""
    config.addinivalue_line(
        "markers", "leaks_environment(*names): these variables are restored after the test"
    )
    # Test processes share the cores, and the threads of one operation spin while they wait for one another: on a busy
    # machine, training that takes a second takes minutes. The compiler's would stay for as long as this process lives.
    os.environ.update({"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"})
    config.addinivalue_line("markers", "preload(*modules): imported once for all ranks of the file's worlds")
    # A shell's `&` and `nohup` set them to be ignored, and children inherit that.
    for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)


@pytest.fixture(scope="session")
def _live_worlds() -> Iterator[_Worlds]:
    yield _worlds
    for world in _worlds.values():
        world.close()
    _worlds.clear()


@pytest.fixture(scope="module")
def _worlds_of_file(_live_worlds: _Worlds) -> Iterator[_Worlds]:
    yield _live_worlds
    for (_, preload), world in _live_worlds.items():
        if preload:
            world.close()
        else:
            world.leave_group()


@pytest.fixture
def world(request: pytest.FixtureRequest, _worlds_of_file: _Worlds) -> Callable[[int], World]:
    """Return a function that returns a world of that many live processes, shared by the test session.

    They compute on `device_type`, on one GPU all together: a test that wants more than that has room for is skipped.
    """

    marker = request.node.get_closest_marker("preload")
    # Environments of engines lack some of them.
    preload = tuple(name for name in marker.args if find_spec(name.partition(".")[0])) if marker else ()

    def of_size(num: int) -> World:
        if device_type() != "cpu" and num > MOST_RANKS_OF_A_GPU:
            pytest.skip(f"needs {num} ranks, and one GPU has room for {MOST_RANKS_OF_A_GPU}")
        return _worlds_of_file.setdefault((num, preload), World(num, device_type(), preload=preload))

    return of_size


@pytest.fixture
def device() -> Any:
    """The device that the test runs on: the CPU in the plain suite, the accelerator in the second pass."""
    import torch

    return torch.device(device_type(), *([] if device_type() == "cpu" else [0]))


@pytest.fixture(scope="module")
def _outcomes() -> dict[Any, Future[Any]]:
    return {}


@pytest.fixture
def outcome(
    request: pytest.FixtureRequest,
    _outcomes: dict[Any, Future[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """The result of a slow job, requested with ``@pytest.mark.parametrize("outcome", [job], indirect=True)``.

    A job is a function of a fresh folder, such as one that launches a script there. It runs before the first test that
    names it; tests of the file that name the same job share its result, or its error.
    """
    job = request.param
    if job not in _outcomes:
        before, _outcomes[job] = ProcessSnapshot.now(workers=_workers()), Future()
        try:
            _outcomes[job].set_result(job(tmp_path_factory.mktemp("job")))
        except BaseException as error:  # noqa: BLE001 -- also a timeout: no other test waits for that again
            _outcomes[job].set_exception(error)
        _fail_if_left(before, "The job")
    return _outcomes[job].result()


@pytest.fixture
def fresh_state() -> Iterator[None]:
    """Run the test without any state, and reset its state afterwards."""
    _forget_state()
    yield
    _forget_state()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    freeze_imported_objects()
    reset_libraries()
    before = ProcessSnapshot.now(workers=_workers())
    yield
    _forget_state()
    marker = request.node.get_closest_marker("leaks_environment")
    export({name: before.environ.get(name) for name in (marker.args if marker else ())})
    _fail_if_left(before, "The test")


def _fail_if_left(before: ProcessSnapshot, whose: str) -> None:
    if leaks := before.leaks_since(workers=_workers()):
        before.put_back(workers=_workers())
        pytest.fail(f"{whose} left behind {'; '.join(leaks)}.", pytrace=False)


def _workers() -> frozenset[int]:
    return frozenset(pid for world in _worlds.values() for pid in world.pids)


def _forget_state() -> None:
    """Reset the runtime and its process group, without importing torch if no test used it."""
    if "accel_state.runtime" in sys.modules or "accel_state.gradient_state" in sys.modules:
        from accel_state.runtime import reset_runtime

        had_group = has_process_group()
        reset_runtime()
        if had_group:
            gc.collect()  # a group that a model in a cycle refers to would keep its threads
