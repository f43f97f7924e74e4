"""The gallery of examples: a page for each script in ``docs/examples``, with its picture and its output."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PICTURES = (".png", ".svg")


def gallery_pages(docs: Path) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown for each example, and for their overview."""
    overview = [
        "# Examples\n",
        "Whole scripts to start from. A test runs every one of them, most on one process and on two.\n",
        '<div class="grid cards" markdown>\n',
    ]
    for script in sorted((docs / "examples").glob("*.py")):
        summary, text = docstring_of(script)
        picture = picture_of(script)
        overview.append(f"-   **[{script.name}]({script.stem}.md)**\n\n    {summary}\n")
        if picture is not None:
            overview.append(f"    ![{summary}](../{picture.relative_to(docs).as_posix()})\n")
        yield f"examples/{script.stem}.md", "\n".join(_page(script, docs, summary, text))
    overview.append("</div>\n")
    yield "examples/index.md", "\n".join(overview)


def docstring_of(script: Path) -> tuple[str, str]:
    """Return the first paragraph of a script's docstring as one line, and the rest."""
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    if docstring is None:
        raise ValueError(f"`{script}` has no docstring; the gallery shows it.")
    first, _, rest = docstring.partition("\n\n")
    return " ".join(first.split()), rest


def picture_of(script: Path) -> Path | None:
    """Return the picture that the script drew, if ``docs/images`` has one of its name."""
    folder = script.parents[1] / "images"
    return next(
        (file for file in (folder / f"{script.stem}{end}" for end in PICTURES) if file.is_file()), None
    )


def _page(script: Path, docs: Path, summary: str, text: str) -> Iterator[str]:
    yield f"# {script.name}\n\n{summary}\n\n{text}\n"
    picture = picture_of(script)
    if picture is not None:
        yield f"![{summary}](../{picture.relative_to(docs).as_posix()})\n"
    output = script.parent / "output" / f"{script.stem}.txt"
    if output.is_file():
        yield f"## Its output\n\n```text\n{output.read_text(encoding='utf-8').rstrip()}\n```\n"
    yield f"## The script\n\n[Download {script.name}]({script.name}){{ download }}\n"
    yield f"```python\n{script.read_text(encoding='utf-8').rstrip()}\n```\n"
