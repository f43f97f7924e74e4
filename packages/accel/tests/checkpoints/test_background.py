import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from accel.checkpoints.background import SaveHandle
from accel_state.errors import CheckpointError


def test_a_handle_is_done_when_the_save_is():
    go = threading.Event()

    def finish():
        go.wait(20)
        return Path("a")

    handle = SaveHandle(finish, target=Path("a"))
    assert not handle.done()
    with pytest.raises(TimeoutError, match="still being written"):
        handle.wait(timeout_s=0.01)
    go.set()
    assert handle.wait(timeout_s=20) == Path("a")
    assert handle.done()
    assert handle.exception() is None


def failing():
    raise CheckpointError("no luck")


def test_an_error_is_raised_by_wait_and_then_known():
    handle = SaveHandle(failing, target=Path("a"))
    with pytest.raises(CheckpointError, match="no luck"):
        handle.wait()
    handle.settle()  # told already


def test_an_error_that_nobody_asked_for_is_raised_by_what_comes_next():
    handle = SaveHandle(failing, target=Path("a"))
    with pytest.raises(CheckpointError, match="no luck"):
        handle.settle()


def test_a_normal_end_waits_for_the_save_and_tells_what_went_wrong(tmp_path):
    code = f"""
import time
from pathlib import Path
from accel.checkpoints.background import SaveHandle
def finish():
    time.sleep(0.3)
    Path({str(tmp_path / "done")!r}).write_text("yes")
    raise OSError("the disk is full")
SaveHandle(finish, target=Path("a"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (tmp_path / "done").read_text() == "yes"
    assert "`a` was not saved: the disk is full" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="priorities of threads are Linux's")
def test_the_writer_gives_way_to_the_training():
    seen = []
    SaveHandle(
        lambda: seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())) or Path("a"),
        target=Path("a"),
    ).wait()
    assert seen == [19]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) < 19
