"""Holds what examples print to the outputs that the gallery shows of them."""

import re
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "docs" / "examples" / "output"
VARIES = {"generate_text", "profiling"}
"""Examples whose lines differ from run to run: text of a model, operators by the time that they took."""
NOISE = ("[Gloo]", "DeepSpeed deepspeed.ops.", "$ ", "[exit code")
"""How lines begin that are not an example's: of libraries, and those that the recording adds."""
NUMBER = re.compile(r"[-+]?\d[\d,_]*(\.\d+)?([eE][-+]?\d+)?%?|\b(nan|inf)\b")
PATH = re.compile(r"\S*/\S*")


def assert_as_recorded(script, printed):
    """Assert that each line that a script prints is in its recording, numbers and paths aside."""
    name = script.parent.name if script.name == "train.py" else script.stem
    if name in VARIES:
        return
    recording = OUTPUT / f"{name}.txt"
    unknown = shapes(printed) - shapes(recording.read_text(encoding="utf-8"))
    assert not unknown, f"Run the commands in {recording} again and paste there what they print."


def shapes(text):
    """Return the different lines of an output without noise, numbers, paths and widths of columns."""
    lines = (line for line in text.splitlines() if not line.startswith(NOISE))
    return {" ".join(NUMBER.sub("#", PATH.sub("PATH", line)).split()) for line in lines if line.strip()}
