"""Who goes first, and that an error in the body leaves no rank waiting."""

import pytest

from accel_state.partial_state import PartialState


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
def test_error_in_the_body_leaves_no_rank_waiting(world, rank):
    assert world(2).run(raise_in_the_body, rank, timeout_s=20) == [rank == 0, rank == 1]
