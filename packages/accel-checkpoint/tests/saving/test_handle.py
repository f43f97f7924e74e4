import threading
from pathlib import Path

import pytest

from accel_checkpoint.saving.handle import SaveHandle
from accel_state.errors import CheckpointError
from tools.harness.scripts import run_script


def test_a_handle_is_done_when_the_save_is():
    go = threading.Event()

    def finish():
        go.wait(20)
        return Path("a")

    handle = SaveHandle(finish, target=Path("a"))
    handle.start()
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
    handle.start()
    with pytest.raises(CheckpointError, match="no luck"):
        handle.wait()
    handle.settle()  # the error has been raised already


def test_an_unreported_error_is_raised_by_settle():
    handle = SaveHandle(failing, target=Path("a"))
    handle.start()
    with pytest.raises(CheckpointError, match="no luck"):
        handle.settle()


def test_a_normal_exit_waits_for_the_save_and_logs_its_error(tmp_path):
    code = f"""
import time
from pathlib import Path
from accel_checkpoint.saving.handle import SaveHandle
def finish():
    time.sleep(0.3)
    Path({str(tmp_path / "done")!r}).write_text("yes")
    raise OSError("the disk is full")
SaveHandle(finish, target=Path("a")).start()
"""
    done = run_script("-c", code)
    assert done.returncode == 0
    assert (tmp_path / "done").read_text() == "yes"
    assert "Saving `a` in the background failed: the disk is full" in done.stderr
