"""The command line of `python -m accel.drop_in`."""

COMMANDS = [
    (["python", "-m", "accel.drop_in", "a.py", "-m"], ["a.py", "-m"], ["a.py", "-m"]),
    (["python", "-u", "-X", "dev", "-m", "accel.drop_in", "a.py"], ["a.py"], ["-u", "-X", "dev", "a.py"]),
    (["python", "-um", "accel.drop_in", "-m", "pytest"], ["-m", "pytest"], ["-u", "-m", "pytest"]),
    (["python", "-maccel.drop_in", "-c", "0"], ["-c", "0"], ["-c", "0"]),
    (["python", "-Bumaccel.drop_in", "a.py"], ["a.py"], ["-Bu", "a.py"]),
]


def test_python_keeps_its_options(run_python):
    given = [(words, arguments) for words, arguments, _ in COMMANDS]
    script = f"""
import json
from accel.drop_in.__main__ import command
print(json.dumps([command(*each)[1:] for each in {given!r}]))
"""
    assert run_python("-c", script) == [expected for _, _, expected in COMMANDS]
