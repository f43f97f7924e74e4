"""pytest plugin: the `world` fixture, fresh state, and leak checks around every test.

Load it with ``-p accel_state.testing.fixtures``. A test that cannot but change variables is marked
``@pytest.mark.leaks_environment("NAME", …)``; these are put back without a word.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from accel_state.environment import export
from accel_state.testing.leaks import Surroundings
from accel_state.testing.world import World

_worlds: dict[int, World] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and let Ctrl-C reach what tests start, also where the tests run in the background."""
    config.addinivalue_line(
        "markers", "leaks_environment(*names): these variables are put back after the test"
    )
    # A shell's `&` and `nohup` have them ignored, and children inherit that.
    for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)


@pytest.fixture(scope="session")
def _live_worlds() -> Iterator[dict[int, World]]:
    yield _worlds
    for world in _worlds.values():
        world.close()
    _worlds.clear()


@pytest.fixture
def world(_live_worlds: dict[int, World]) -> Callable[[int], World]:
    """Return a function that gives a world of that many live processes, shared by the whole test session."""

    def of_size(num: int) -> World:
        return _live_worlds.setdefault(num, World(num))

    return of_size


@pytest.fixture
def fresh_state() -> Iterator[None]:
    """Run the test with no state built, and forget afterwards what it built."""
    _forget_state()
    yield
    _forget_state()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    before = Surroundings.now()
    yield
    _forget_state()
    marker = request.node.get_closest_marker("leaks_environment")
    export({name: before.environ.get(name) for name in (marker.args if marker else ())})
    allowed = frozenset(pid for world in _worlds.values() for pid in world.pids)
    leaks = before.leaks_since(allowed_pids=allowed)
    if leaks:
        before.put_back(allowed_pids=allowed)
        pytest.fail(f"The test left behind {'; '.join(leaks)}.", pytrace=False)


def _forget_state() -> None:
    """Reset the runtime and its process group; tests that never touched it do not import torch for that."""
    if "accel_state.runtime" in sys.modules:
        from accel_state.runtime import reset_runtime

        reset_runtime()
