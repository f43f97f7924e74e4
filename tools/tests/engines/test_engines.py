import re
from pathlib import Path

import pytest

from tools.engines import NAMES, load_engine
from tools.workspace import ROOT

MARK = re.compile(r"mark\.engine\(\"(\w+)\"\)")
NO_ENGINES = {"__init__", "debian", "protocol", "running"}


def marked_files():
    """Return, for each engine, the files with tests of it."""
    found = {}
    folders = [
        ROOT / "integration-tests",
        ROOT / "docs",
        ROOT / "tools" / "tests",
        *ROOT.glob("packages/*/tests"),
    ]
    for file in [file for folder in folders for file in folder.rglob("test_*.py")]:
        if file.name != "test_selection.py":  # its engines are made up
            for name in MARK.findall(file.read_text(encoding="utf-8")):
                found.setdefault(name, set()).add(file)
    return found


def test_every_file_is_an_engine_of_that_name():
    files = {file.stem for file in (ROOT / "tools" / "engines").glob("*.py")}
    assert list(NAMES) == sorted(files - NO_ENGINES)
    assert [load_engine(name).name for name in NAMES] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_names_exactly_the_files_that_are_marked_with_it(name):
    told = set()
    for path in (ROOT / each for each in load_engine(name).tests):
        told |= (
            {path}
            if path.is_file()
            else {file for file in path.rglob("test_*.py") if MARK.search(file.read_text())}
        )
    assert told == marked_files()[name]


def test_no_test_is_marked_with_an_engine_that_nobody_sets_up():
    assert set(marked_files()) <= set(NAMES)


def test_what_the_variables_name_lies_where_clean_finds_it():
    for name in NAMES:
        for value in load_engine(name).variables.values():
            assert not value.startswith("/") or {".venvs", "build"} & set(Path(value).relative_to(ROOT).parts)
