"""Run examples and record them: ``python -m tools.site.record [EXAMPLE …]``.

Each writes its commands and their output to ``docs/examples/output``, and its picture to ``docs/images``. All
examples run if none is named. They start in an empty folder, so that nothing of an earlier run is there.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.engines import load_engine
from tools.setup.environment import Environment
from tools.setup.running import SetupError, environment_with, say
from tools.site.recorded import NOISE, Step, as_text
from tools.site.recordings import RECORDINGS, Recording
from tools.workspace import ROOT, read_packages

IMAGES = ROOT / "docs" / "images"
OUTPUT = ROOT / "docs" / "examples" / "output"
STYLE = Path(__file__).with_name("matplotlibrc")
MOST_BYTES = 60_000
LIMIT_S = 900.0


def environment_of(recording: Recording) -> tuple[Environment, dict[str, str]]:
    """Return where an example runs, and the variables that its engine needs.

    Raises:
        SetupError: If the environment of its engine is not there.
    """
    if recording.engine is None:
        return Environment(), {}
    engine = load_engine(recording.engine)
    environment = engine.environment
    if not environment.python.exists():
        raise SetupError(
            f"`{environment.folder}` is not there. `python tools/dev.py test --engines {engine.name}` makes it."
        )
    return environment, dict(engine.variables)


def run_step(command: str, *, folder: Path, environ: dict[str, str], code: int) -> Step:
    """Run one command in ``folder``.

    Raises:
        SetupError: If it ends with another exit code than ``code``.
    """
    say(f"$ {command}")
    started = time.monotonic()
    done = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    say(f"{time.monotonic() - started:.1f} s")
    if done.returncode != code:
        raise SetupError(f"`{command}` ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return Step(command, tidied(done.stdout, folder=folder), code)


def run_notebook(notebook: Path, *, folder: Path, environ: dict[str, str]) -> str:
    """Return what the cells of a notebook print, by the kernel of this environment in ``folder``."""
    import nbclient
    import nbformat

    content = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    client = nbclient.NotebookClient(content, timeout=120, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environ)
    outputs = [output for cell in content.cells for output in cell.get("outputs", ())]
    return tidied(
        "".join(output["text"] for output in outputs if output.get("name") == "stdout"), folder=folder
    )


def tidied(text: str, *, folder: Path) -> str:
    """Return an output without ``NOISE``, spaces at the ends of lines, and folders of this machine."""
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(NOISE)]
    return re.sub(rf"(file://)?{re.escape(str(folder))}/", "", "\n".join(lines)).strip("\n") + "\n"


def optimise(picture: Path) -> None:
    """Write a PNG anew with a palette, which drawings hardly need more than.

    Raises:
        SetupError: If it is too large for a page even so.
    """
    from PIL import Image

    with Image.open(picture) as image:
        colours = image.convert("RGB").quantize(96, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    colours.save(picture, optimize=True)
    if picture.stat().st_size > MOST_BYTES:
        raise SetupError(f"`{picture}` has more than {MOST_BYTES} bytes. Draw it smaller.")


def record(name: str) -> None:
    """Run the commands of an example; write what they printed, and its picture."""
    recording = RECORDINGS[name]
    environment, variables = environment_of(recording)
    sources = [str(package.folder / "src") for package in read_packages().values()]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        (folder / "docs").symlink_to(ROOT / "docs")
        environ = {
            **environment_with(variables),
            "PATH": os.pathsep.join([str(environment.python.parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([*sources, str(folder / "installed")]),
            "MATPLOTLIBRC": str(STYLE),
            "COLUMNS": "100",
        }
        for command in recording.setup:
            run_step(command, folder=folder, environ=environ, code=0)
        if recording.notebook:
            (command,) = recording.commands
            notebook = ROOT / command.split()[-1]
            steps = [Step(command, run_notebook(notebook, folder=folder, environ=environ))]
        else:
            steps = [
                run_step(command, folder=folder, environ=environ, code=recording.codes.get(number, 0))
                for number, command in enumerate(recording.commands)
            ]
        picture = IMAGES / f"{name}.png"
        if recording.draw is None:
            shutil.copyfile(folder / (recording.drawn or f"runs/{name}.png"), picture)
        else:
            recording.draw(steps, folder, picture)
    optimise(picture)
    (OUTPUT / f"{name}.txt").write_text(as_text(steps), encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site.record", description=__doc__)
    parser.add_argument(
        "examples", nargs="*", metavar="EXAMPLE", help="such as `digits`; all if none is named"
    )
    names = parser.parse_args(words).examples or list(RECORDINGS)
    unknown = sorted(set(names) - set(RECORDINGS))
    if unknown:
        parser.error(f"no such example: {', '.join(unknown)}; there are {', '.join(RECORDINGS)}")
    os.environ["MATPLOTLIBRC"] = str(STYLE)  # read when matplotlib is imported, by what draws here
    failed = 0
    for name in names:
        try:
            record(name)
        except SetupError as error:
            failed = 1
            print(f"error: {name}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
