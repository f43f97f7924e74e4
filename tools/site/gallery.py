"""The gallery of examples: a page for each script in ``docs/examples``, with its picture and its output."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.site.recorded import advice
from tools.site.recordings import RECORDINGS


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
        "Outputs and pictures are from real runs, recorded by `python -m tools.site.record`.\n",
    ]
    for subject, titles in subjects.items():
        overview += [f"## {subject}\n", '<div class="grid cards" markdown>\n']
        for name, title in titles.items():
            summary, _ = pages[name]
            card = [f"**[{title}]({name}.md)** `{examples[name].name}`", summary, _picture(examples[name])]
            overview.append("-   " + "\n\n    ".join(card) + "\n")
        overview.append("</div>\n")
    yield "examples/index.md", "\n".join(overview)
    for name, (_, text) in pages.items():
        yield f"examples/{name}.md", text


def _page_of(example: Path) -> tuple[str, str] | None:
    """Return an example's summary and page: of a script, a notebook, or a package with `train.py`; None for others."""
    if example.suffix == ".py":
        summary, text = docstring_of(example)
        return summary, "\n".join(_script(example, summary, text))
    if example.suffix == ".ipynb":
        cells = json.loads(example.read_text(encoding="utf-8"))["cells"]
        return _summary(cells[0]["source"]), "\n".join([*_notebook(example, cells), *_shown(example)])
    if (example / "train.py").is_file():
        text = (example / "README.md").read_text(encoding="utf-8")
        return _summary(text), "\n".join([text, *_shown(example), *_files(example)])
    return None


def _summary(markdown: str | list[str]) -> str:
    """Return the title of a page, as a sentence."""
    return "".join(markdown).partition("\n")[0].strip("# ") + "."


def docstring_of(script: Path) -> tuple[str, str]:
    """Return the first paragraph of a script's docstring as one line, and the rest."""
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    if docstring is None:
        raise ValueError(f"`{script}` has no docstring; the gallery shows it.")
    first, _, rest = docstring.partition("\n\n")
    return " ".join(first.split()), rest


def _picture(example: Path) -> str:
    """Return Markdown that shows an example's picture, with what one sees in it.

    Raises:
        ValueError: If it has no picture, or the picture has no description.
    """
    if example.stem not in RECORDINGS:
        raise ValueError(
            f"`{example}` has no entry in `tools/site/recordings.py`; the gallery shows its recording."
        )
    picture = example.parents[1] / "images" / f"{example.stem}.png"
    if not picture.is_file():
        raise ValueError(f"`{example}` has no picture. {advice(example.stem)}")
    return f"![{RECORDINGS[example.stem].alt}](../images/{picture.name})"


def _shown(example: Path) -> Iterator[str]:
    """Yield an example's picture and output.

    Raises:
        ValueError: If it has none.
    """
    picture = _picture(example)
    output = example.parent / "output" / f"{example.stem}.txt"
    if not output.is_file():
        raise ValueError(f"`{example}` has no recorded output. {advice(example.stem)}")
    yield f"{picture}\n\n*Drawn from the run below by `python -m tools.site.record {example.stem}`.*\n"
    yield f"## Its output\n\n```text\n{output.read_text(encoding='utf-8').rstrip()}\n```\n"


def _script(script: Path, summary: str, text: str) -> Iterator[str]:
    yield f"# {script.name}\n\n{summary}\n\n{text}\n"
    yield from _shown(script)
    yield f"## The script\n\n[Download {script.name}]({script.name}){{ download }}\n"
    yield f"```python\n{script.read_text(encoding='utf-8').rstrip()}\n```\n"


def _notebook(notebook: Path, cells: list[dict[str, Any]]) -> Iterator[str]:
    for cell in cells:
        source = "".join(cell["source"])
        yield f"```python\n{source}\n```\n" if cell["cell_type"] == "code" else f"{source}\n"
    yield f"[Download {notebook.name}]({notebook.name}){{ download }}\n"


def _files(package: Path) -> Iterator[str]:
    for file in sorted(package.rglob("*")):
        if file.suffix in (".py", ".toml") and "__pycache__" not in file.parts:
            language = "python" if file.suffix == ".py" else "toml"
            yield f"## {file.relative_to(package).as_posix()}\n"
            yield f"```{language}\n{file.read_text(encoding='utf-8').rstrip()}\n```\n"
