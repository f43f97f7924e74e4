"""Slow jobs run in parallel when they are needed: each once, in a folder of its own, with its own failure."""

import threading
from functools import partial

import pytest

from tools.harness.parallel_jobs import NUM_AT_ONCE, ParallelJobs


@pytest.fixture
def make_folder(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("job")


def test_each_job_has_a_folder_of_its_own(make_folder):
    def write(folder, *, text):
        (folder / "text").write_text(text)
        return folder

    first, second = partial(write, text="first"), partial(write, text="second")
    done = ParallelJobs([first, second], make_folder=make_folder)
    assert (done.outcome_of(first) / "text").read_text() == "first"
    assert (done.outcome_of(second) / "text").read_text() == "second"


def test_jobs_run_at_the_same_time(make_folder):
    meeting = threading.Barrier(NUM_AT_ONCE)
    jobs = [lambda folder: meeting.wait(timeout=60) for _ in range(NUM_AT_ONCE)]
    done = ParallelJobs(jobs, make_folder=make_folder)
    assert sorted(done.outcome_of(job) for job in jobs) == list(range(NUM_AT_ONCE))


def test_an_outcome_is_not_waited_for_longer_than_some_jobs_take(make_folder):
    started = []
    jobs = [partial(lambda folder, number: started.append(number), number=number) for number in range(5)]
    done = ParallelJobs(jobs, make_folder=make_folder)
    assert started == []
    done.outcome_of(jobs[3])
    assert sorted(started) == [*range(NUM_AT_ONCE - 1), 3]
    for job in jobs:
        done.outcome_of(job)
    assert sorted(started) == [0, 1, 2, 3, 4]


def test_a_job_that_several_tests_name_is_run_once(make_folder):
    runs = []
    done = ParallelJobs([runs.append] * 3, make_folder=make_folder)
    assert done.outcome_of(runs.append) is None
    assert len(runs) == 1


def test_a_failure_is_raised_where_its_outcome_is_asked_for_and_nowhere_else(make_folder):
    def fail(folder):
        raise ValueError("this one only")

    def work(folder):
        return "done"

    done = ParallelJobs([fail, work], make_folder=make_folder)
    with pytest.raises(ValueError, match="this one only"):
        done.outcome_of(fail)
    assert done.outcome_of(work) == "done"
