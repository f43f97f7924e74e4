"""What the README shows is true to the last number."""

import re

import pytest

from tools.workspace import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
GPU = (ROOT / "docs" / "reference" / "gpu.md").read_text(encoding="utf-8")
MEASURED = re.findall(r"^\| (?:`(\w+)`: )?([^|]*) \|(.*\d.*)\|$", README, re.MULTILINE)


@pytest.mark.parametrize(("case", "name", "cells"), MEASURED[1:], ids=[each[1] for each in MEASURED[1:]])
def test_every_figure_was_measured(case, name, cells):
    """A figure is in the section of its benchmark, in its row on the page of the GPU, or a ratio of such figures."""
    if case:
        (where,) = [each for each in BENCHMARKS.split("\n## ") if re.search(rf"(?:`|bench ){case}\b", each)]
    else:
        (where,) = [line for line in GPU.splitlines() if line.startswith(f"| {name} |")]
    plain, *others = (re.findall(r"\d[\d.,]*\d", cell) for cell in cells.split("|"))
    for first, *more in filter(None, (plain, *others)):
        shares = {
            f"{float(first.replace(',', '')) / float(plain[0].replace(',', '')):.{digits}f}"
            for digits in (3, 4)
        }
        for figure in [first, *more]:
            assert figure in shares or re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", where), figure
