"""What the README shows is true to the last number."""

import re

import pytest

from tools.workspace import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
MEASURED = re.findall(r"^\| `(\w+)`: [^|]*\|(.*)\|$", README, re.MULTILINE)


@pytest.mark.parametrize(("case", "cells"), MEASURED, ids=[case for case, _ in MEASURED])
def test_every_figure_is_one_of_the_benchmarks(case, cells):
    (section,) = [each for each in BENCHMARKS.split("\n## ") if re.search(rf"(?:`|bench ){case}\b", each)]
    figures = re.findall(r"\d[\d.,]*", cells)
    assert len(figures) >= 2
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", section), figure


def test_the_demo_prints_what_was_recorded():
    (shown,) = re.findall(r"```text\ntraining: [^\n]*\n(.*?)```", README, re.DOTALL)
    recorded = (ROOT / "docs" / "examples" / "output" / "digits.txt").read_text(encoding="utf-8")
    assert shown == "".join(
        line for line in recorded.splitlines(keepends=True) if line.strip() and line[0] != "$"
    )
