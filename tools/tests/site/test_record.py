import re

import pytest
from PIL import Image

from tools.setup.running import SetupError
from tools.site.record import MOST_BYTES, OUTPUT, main, optimise, run_step, tidied
from tools.site.recorded import read_steps
from tools.site.recordings import RECORDINGS
from tools.workspace import ROOT

IMAGES = ROOT / "docs" / "images"


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_that_of_its_commands(name):
    recording = RECORDINGS[name]
    steps = read_steps(OUTPUT / f"{name}.txt")
    assert [step.command for step in steps] == list(recording.commands)
    assert [step.code for step in steps] == [recording.codes.get(number, 0) for number in range(len(steps))]
    assert not any(str(ROOT) in step.output or "/tmp/" in step.output for step in steps)


def test_pictures_are_small():
    sizes = [(IMAGES / f"{name}.png").stat().st_size for name in RECORDINGS]
    assert max(sizes) <= MOST_BYTES
    assert sum(sizes) < 1_000_000


def test_pictures_in_guides_say_which_command_made_them():
    guides = "".join(guide.read_text(encoding="utf-8") for guide in sorted((ROOT / "docs").glob("*/*.md")))
    shown = re.findall(r"^!\[.*\]\(\.\./images/(\w+)\.png\)\n\n(.*)$", guides, flags=re.MULTILINE)
    assert len(shown) > 8
    assert not [
        name for name, below in shown if f"drawn by `python -m tools.site.record {name}`" not in below
    ]


def test_folders_of_the_machine_and_lines_of_gloo_are_not_recorded(tmp_path):
    text = f"[Gloo] Rank 0 is connected\nsaved to {tmp_path}/runs/a   \n"
    assert tidied(text, folder=tmp_path) == "saved to runs/a\n"


def test_a_command_that_ends_otherwise_than_it_should_is_an_error(tmp_path):
    with pytest.raises(SetupError, match="ended with exit code 0"):
        run_step("true", folder=tmp_path, environ={"PATH": "/usr/bin:/bin"}, code=75)


def test_a_picture_keeps_its_colours_and_gets_smaller(tmp_path):
    picture = tmp_path / "one.png"
    image = Image.new("RGB", (300, 200), "white")
    image.paste("#2a6f97", (0, 0, 100, 100))
    image.save(picture)
    before = picture.stat().st_size
    optimise(picture)
    assert picture.stat().st_size < before
    with Image.open(picture) as smaller:
        assert smaller.convert("RGB").getpixel((5, 5)) == (0x2A, 0x6F, 0x97)


def test_an_unknown_example_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no such example: nothing; there are accumulation," in capsys.readouterr().err
