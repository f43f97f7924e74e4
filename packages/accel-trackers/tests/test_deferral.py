import os
import signal
import threading

import pytest

from accel_trackers.deferral import deferred


@pytest.fixture
def heard():
    """The times that a handler of SIGTERM was called."""
    times = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: times.append(signum))
    yield times
    signal.signal(signal.SIGTERM, before)


def test_a_signal_takes_effect_after_the_block(heard):
    with deferred(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGTERM]


def test_a_signal_outside_of_the_block_acts_as_usual(heard):
    with deferred(signal.SIGTERM):
        pass
    assert heard == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with deferred(signal.SIGTERM):
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_leave_signals_unchanged(heard):
    handlers = []

    def elsewhere():
        with deferred(signal.SIGTERM):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]
