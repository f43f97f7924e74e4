"""The gallery of examples: a page for each script in ``docs/examples``, with its picture and its output."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.workspace import ROOT

EXAMPLES = ROOT / "docs" / "examples"
PICTURES: dict[str, str] = tomllib.loads((EXAMPLES / "pictures.toml").read_text(encoding="utf-8"))
"""What one sees in the picture of an example, for those who do not see it."""
OVERVIEW = """\
# Examples

Complete scripts to start from. A test runs each of them, training scripts on one process and on two.
Outputs and pictures are from real runs.
"""


def gallery_pages(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown for each example of the navigation, and for their overview, which has its order."""
    (entries,) = (section["Examples"] for section in nav if "Examples" in section)
    overview = [OVERVIEW]
    for subject, pages in (item for entry in entries for item in entry.items() if isinstance(item[1], list)):
        overview += [f"## {subject}\n", '<div class="grid cards" markdown>\n']
        for title, page in (item for entry in pages for item in entry.items()):
            (example,) = (each for each in EXAMPLES.iterdir() if each.stem == Path(page).stem)
            summary, parts = _page_of(example)
            yield page, "\n".join(parts)
            link = f"**[{title}]({example.stem}.md)** `{example.name}`"
            overview.append(f"-   {link}\n\n    {summary}\n\n    {_picture(example)}\n")
        overview.append("</div>\n")
    yield "examples/index.md", "\n".join(overview)


def _page_of(example: Path) -> tuple[str, list[str]]:
    """Return the summary and the page of an example: a script, a notebook, or a package with a README."""
    download = f"[Download {example.name}]({example.name}){{ download }}\n"
    output = _code("text", EXAMPLES / "output" / f"{example.stem}.txt")
    shown = f"{_picture(example)}\n\n## Its output\n\n{output}"
    if example.suffix == ".py":
        docstring = str(ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))))
        summary, _, text = docstring.partition("\n\n")
        script = f"## The script\n\n{download}\n{_code('python', example)}"
        return " ".join(summary.split()), [f"# {example.name}\n\n{summary}\n\n{text}\n", shown, script]
    if example.suffix == ".ipynb":
        cells = json.loads(example.read_text(encoding="utf-8"))["cells"]
        texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        parts = [f"```python\n{text}\n```\n" if kind == "code" else f"{text}\n" for kind, text in texts]
        parts += [download, shown]
    else:
        parts = [(example / "README.md").read_text(encoding="utf-8"), shown]
        for suffix, language in ((".toml", "toml"), (".py", "python")):
            for file in sorted(example.rglob(f"*{suffix}")):
                parts.append(f"## {file.relative_to(example).as_posix()}\n\n{_code(language, file)}")
    return parts[0].partition("\n")[0].strip("# ") + ".", parts


def _code(language: str, file: Path) -> str:
    return f"```{language}\n{file.read_text(encoding='utf-8').rstrip()}\n```\n"


def _picture(example: Path) -> str:
    """Return Markdown that shows an example's picture, with what one sees in it."""
    return f"![{PICTURES[example.stem]}](../images/{example.stem}.png)"
