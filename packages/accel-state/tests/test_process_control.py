"""Who goes first, and that an error in the body leaves nobody waiting."""

import pytest

from accel_state.errors import ConfigError
from accel_state.partial_state import PartialState
from accel_state.process_control import check_process_index, first, only_if


def test_first_process_runs_the_body_before_it_lets_the_others_in():
    events = []
    with first(True, barrier=lambda: events.append("barrier")):
        events.append("first")
    with first(False, barrier=lambda: events.append("barrier")):
        events.append("other")
    assert events == ["first", "barrier", "barrier", "other"]


def write_or_read(path, which):
    state = PartialState()
    with getattr(state, which)():
        if state.is_main_process:
            assert not path.exists()
            path.write_text("downloaded")
        return path.read_text()


@pytest.mark.parametrize("which", ["main_process_first", "local_main_process_first"])
def test_others_find_what_the_first_made(world, tmp_path, which):
    assert world(2).run(write_or_read, tmp_path / "data", which) == ["downloaded"] * 2


def raise_in_the_body(rank):
    state = PartialState()
    try:
        with state.main_process_first():
            if state.process_index == rank:
                raise KeyError("in the body")
    except KeyError:
        caught = True
    else:
        caught = False
    state.wait_for_everyone()
    return caught


@pytest.mark.parametrize("rank", [0, 1])
def test_error_in_the_body_leaves_nobody_waiting(world, rank):
    assert world(2).run(raise_in_the_body, rank, timeout_s=20) == [rank == 0, rank == 1]


def test_function_asks_when_it_is_called():
    allowed = [True, False]
    run = only_if(lambda: allowed.pop(), lambda number: number + 1)
    assert run(1) is None
    assert run(1) == 2


@pytest.mark.parametrize("index", [-1, 2])
def test_index_of_no_process_is_refused(index):
    with pytest.raises(ConfigError, match=f"`process_index` must lie between 0 and 1, got {index}"):
        check_process_index("process_index", index, count=2)


def test_single_process_stands_in_for_any_other():
    assert check_process_index("process_index", 7, count=1) == 7
    with pytest.raises(ConfigError, match="say which process"):
        check_process_index("process_index", None, count=1)
