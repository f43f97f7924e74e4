import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from accel_checkpoint.saving.low_priority import NICENESS, LowPriorityThread


def whose(writer):
    """Return the thread in which ``writer`` lets work be done."""
    seen = []
    writer.run(lambda: seen.append(threading.current_thread()))
    return seen[0]


def test_work_runs_in_the_thread_until_hurry_is_called():
    with LowPriorityThread(clock=lambda: 0.0) as writer:
        assert whose(writer) is not threading.current_thread()
        writer.hurry()
        assert whose(writer) is threading.current_thread()


def test_after_the_patience_the_caller_works_and_pauses_nine_tenths_of_the_time():
    now_s, pauses_s = 100.0, []
    with LowPriorityThread(patience_s=5, clock=lambda: now_s, pause=pauses_s.append) as writer:
        now_s = 104.0
        assert whose(writer) is not threading.current_thread()
        assert not pauses_s
        now_s = 105.0
        begun_s = time.thread_time()
        assert whose(writer) is threading.current_thread()
        assert 0 < pauses_s[0] < 9 * (time.thread_time() - begun_s)
        writer.hurry()
        assert whose(writer) is threading.current_thread()
        assert len(pauses_s) == 1


def test_work_that_is_given_to_the_thread_is_done_when_run_returns_and_its_errors_are_raised():
    with LowPriorityThread(clock=lambda: 0.0) as writer:
        for error in (OSError("the disk is full"), KeyboardInterrupt()):

            def fail(error=error):
                raise error

            with pytest.raises(type(error)) as caught:
                writer.run(fail)
            assert caught.value is error
        assert whose(writer) is not threading.current_thread()


def test_each_of_several_callers_gets_the_outcome_of_its_own_work():
    def outcome(number):
        def work():
            if number % 2:
                raise OSError(number)

        try:
            writer.run(work)
        except OSError as error:
            return error.args[0]
        return None

    with LowPriorityThread(clock=lambda: 0.0) as writer, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(outcome, range(400))) == [n if n % 2 else None for n in range(400)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="priorities of threads are Linux's")
def test_only_the_thread_has_low_priority():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before, seen = niceness(), []
    with LowPriorityThread(clock=lambda: 0.0) as writer:
        writer.run(lambda: seen.append(niceness()))
        writer.hurry()
        writer.run(lambda: seen.append(niceness()))
    assert seen == [max(NICENESS, before), before]
    assert niceness() == before


def test_at_exit_work_runs_without_pauses():
    code = """
import threading
from accel_checkpoint.saving.low_priority import LowPriorityThread
def save():
    with LowPriorityThread(clock=lambda: 0.0) as writer:
        main.join()
        writer.run(lambda: print(threading.current_thread().name))
main = threading.main_thread()
threading.Thread(target=save, name="saver").start()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True
    )
    assert done.stdout.strip() == "saver"
