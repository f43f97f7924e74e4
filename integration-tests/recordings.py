"""Holds what examples print to the outputs that the gallery shows of them."""

from pathlib import Path

from tools.site.recorded import advice, read_steps, shapes

OUTPUT = Path(__file__).parents[1] / "docs" / "examples" / "output"
VARIES = {"generate_text", "profiling"}
"""Examples whose lines differ from run to run: text of a model, operators by the time that they took."""


def assert_as_recorded(script, printed):
    """Assert that each line that a script prints is in its recording, numbers and paths aside."""
    name = script.parent.name if script.name == "train.py" else script.stem
    if name in VARIES:
        return
    recorded = shapes("".join(step.output for step in read_steps(OUTPUT / f"{name}.txt")))
    unknown = shapes(printed) - recorded
    assert not unknown, f"`{name}` prints what its recorded output does not have. {advice(name)}"
