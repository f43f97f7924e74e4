"""The gallery of examples: a page for each script in ``docs/examples``, with its picture and its output."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.workspace import ROOT

PICTURES: dict[str, str] = tomllib.loads((ROOT / "docs/examples/pictures.toml").read_text(encoding="utf-8"))
"""What one sees in the picture of an example, for those who do not see it."""


def subjects_of(nav: Any) -> dict[str, dict[str, str]]:
    """Return the titles of examples by their names, by their subjects in the navigation."""
    (entries,) = (section["Examples"] for section in nav if "Examples" in section)
    return {
        subject: {Path(page).stem: title for entry in inside for title, page in entry.items()}
        for section in entries
        for subject, inside in section.items()
        if isinstance(inside, list)
    }


def gallery_pages(docs: Path, subjects: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown for each example, and for their overview.

    Args:
        docs: The folder of the documentation.
        subjects: What `subjects_of` returns. mkdocs warns of examples that are not in it.
    """
    examples = {example.stem: example for example in sorted((docs / "examples").iterdir())}
    pages = {name: page for name, example in examples.items() if (page := _page_of(example)) is not None}
    overview = [
        "# Examples\n",
        "Complete scripts to start from. A test runs each of them, training scripts on one process and on two.",
        "Outputs and pictures are from real runs.\n",
    ]
    for subject, titles in subjects.items():
        overview += [f"## {subject}\n", '<div class="grid cards" markdown>\n']
        for name, title in titles.items():
            link = f"**[{title}]({name}.md)** `{examples[name].name}`"
            overview.append(f"-   {link}\n\n    {pages[name][0]}\n\n    {_picture(examples[name])}\n")
        overview.append("</div>\n")
    yield "examples/index.md", "\n".join(overview)
    yield from ((f"examples/{name}.md", "\n".join(parts)) for name, (_, parts) in pages.items())


def _page_of(example: Path) -> tuple[str, list[str]] | None:
    """Return an example's summary and page: of a script, a notebook, or a package with `train.py`; None for others."""
    if example.suffix == ".py":
        docstring = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")))
        if docstring is None:
            raise ValueError(f"`{example}` has no docstring; the gallery shows it.")
        first, _, text = docstring.partition("\n\n")
        summary, download = (
            " ".join(first.split()),
            f"[Download {example.name}]({example.name}){{ download }}",
        )
        head = [f"# {example.name}\n\n{summary}\n\n{text}\n", *_shown(example)]
        return summary, [*head, f"## The script\n\n{download}\n", _code("python", example)]
    if example.suffix == ".ipynb":
        cells = [
            (cell["cell_type"], "".join(cell["source"]))
            for cell in json.loads(example.read_text("utf-8"))["cells"]
        ]
        parts = [f"```python\n{text}\n```\n" if kind == "code" else f"{text}\n" for kind, text in cells]
        parts.append(f"[Download {example.name}]({example.name}){{ download }}\n")
        return _title(cells[0][1]), [*parts, *_shown(example)]
    if (example / "train.py").is_file():
        text = (example / "README.md").read_text(encoding="utf-8")
        files = [file for file in sorted(example.rglob("*")) if file.suffix in (".py", ".toml")]
        parts = [text, *_shown(example)]
        for file in (each for each in files if "__pycache__" not in each.parts):
            language = "python" if file.suffix == ".py" else "toml"
            parts += [f"## {file.relative_to(example).as_posix()}\n", _code(language, file)]
        return _title(text), parts
    return None


def _title(markdown: str) -> str:
    """Return the title of a page, as a sentence."""
    return markdown.partition("\n")[0].strip("# ") + "."


def _code(language: str, file: Path) -> str:
    return f"```{language}\n{file.read_text(encoding='utf-8').rstrip()}\n```\n"


def _picture(example: Path) -> str:
    """Return Markdown that shows an example's picture, with what one sees in it."""
    if example.stem not in PICTURES:
        raise ValueError(
            f"Draw `docs/images/{example.stem}.png` for `{example}`, and describe it in `pictures.toml`."
        )
    return f"![{PICTURES[example.stem]}](../images/{example.stem}.png)"


def _shown(example: Path) -> list[str]:
    """Return an example's picture, and the output of the commands that it was drawn from."""
    output = example.parent / "output" / f"{example.stem}.txt"
    return [f"{_picture(example)}\n", f"## Its output\n\n{_code('text', output)}"]
