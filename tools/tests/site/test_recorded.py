import pytest

from tools.site.recorded import Step, as_text, read_steps, shapes


def test_steps_are_read_as_they_were_written(tmp_path):
    steps = [Step("accel launch one.py", "saved\n", code=75), Step("accel launch one.py", "done\n")]
    file = tmp_path / "one.txt"
    file.write_text(as_text(steps))
    assert file.read_text().startswith("$ accel launch one.py\nsaved\n[exit code 75]\n\n$ accel")
    assert [(step.command, step.output.strip(), step.code) for step in read_steps(file)] == [
        (step.command, step.output.strip(), step.code) for step in steps
    ]


def test_a_recording_without_a_command_is_refused(tmp_path):
    (tmp_path / "one.txt").write_text("1\n")
    with pytest.raises(
        ValueError, match=r"does not begin with `\$ ` and a command. Run `python -m tools.site.record one`"
    ):
        read_steps(tmp_path / "one.txt")


def test_lines_that_differ_in_numbers_paths_and_spaces_have_one_shape():
    one = "[Gloo] Rank 0 is connected\nstep 10: loss 1.5e-3, 99%\nsaved to runs/a/checkpoint_0\n  name      1,024\n"
    other = "step 9: loss 0.5, 3%\nstep 12: loss inf, 3%\nsaved to /tmp/x/y\n  name   7\n"
    assert shapes(one) == shapes(other) == {"step #: loss #, #", "saved to PATH", "name #"}
