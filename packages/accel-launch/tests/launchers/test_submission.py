"""A job goes to a program's standard input; a program that is missing, refuses or is silent is reported."""

import pytest

from accel_launch.launchers import submission
from accel_launch.launchers.submission import submit
from accel_launch.plan import ProcessPlan
from accel_state.errors import LaunchError, NotAvailableError


def submitted(folder, *argv):
    return submit(ProcessPlan(argv, folder), "the job", asked_by="--flag", otherwise="Do it elsewhere.")


def test_the_program_gets_the_job_and_its_answer_is_returned(tmp_path):
    assert submitted(tmp_path, "sh", "-c", "echo taken: $(cat) in $(pwd)") == f"taken: the job in {tmp_path}"


def test_a_refusal_is_reported_in_the_words_of_the_program(tmp_path):
    with pytest.raises(LaunchError, match="`sh` refused the job: no room"):
        submitted(tmp_path, "sh", "-c", "echo no room >&2; exit 1")


def test_a_missing_program_is_named_with_a_hint(tmp_path):
    with pytest.raises(NotAvailableError, match=r"`--flag` needs the program `no-such`.*Do it elsewhere\."):
        submitted(tmp_path, "no-such")


def test_a_program_that_does_not_answer_leaves_the_job_in_doubt(tmp_path, monkeypatch):
    monkeypatch.setattr(submission, "_TIMEOUT_S", 0.2)
    with pytest.raises(LaunchError, match=r"did not answer within 0\.2 s, so it is not known"):
        submitted(tmp_path, "sleep", "20")
