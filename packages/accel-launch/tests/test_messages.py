from __future__ import annotations

from accel_launch.messages import complain, show, warn


def test_answers_go_to_stdout_and_all_else_to_stderr(capsys):
    show("answer")
    warn("careful")
    complain("broken")
    captured = capsys.readouterr()
    assert captured.out == "answer\n"
    assert captured.err == "warning: careful\nerror: broken\n"
