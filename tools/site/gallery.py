"""The gallery of examples: a page for each script in ``docs/examples``, with its picture and its output."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PICTURES = {
    "accumulation": "Four bars: all but batches of unequal size without num_items end at the weight 2.04",
    "automatic_batch_size": "Bars of 256, 128, 64 and 32 rows; only the last one fits",
    "big_model": "A bar for each layer: the first blocks and the embedding in memory, the others in the checkpoint",
    "check_digits": "Scans of digits that the reloaded model gets wrong, each with its label and what the model reads",
    "checkpointing": "The losses of a run that was stopped and resumed lie on those of a run without a stop",
    "communication_hooks": "The losses without a hook, in fp16 and with PowerSGD fall alike",
    "cross_validation": "The accuracy of each of five folds on the wines that were held out",
    "deepspeed_zero3": "A falling loss: the first 30 steps on two ranks, the others on one",
    "diffusion": "Ten columns of images, from noise at the top to the digits 0 to 9 at the bottom",
    "digits": "Training loss falling and held-out accuracy rising over twelve epochs",
    "distributed_inference": "The score of each prompt; process 0 answered the first four, process 1 the others",
    "early_stopping": "The training loss keeps falling; the held-out loss rises again, and training stops",
    "every_axis": "Loss curves of one model in every layout lie on top of each other; below, how far they are apart",
    "fp8": "The loss in 8 bits falls as that in bf16 does",
    "gan": "Rows of generated digits: noise at the top, digits at the bottom",
    "generate_text": "Text that a model wrote: spaces and ends of words are dark, since it was sure of them",
    "image_classification": "Held-out accuracy over four epochs, with every feature off and on",
    "language_model": "The loss of a language model over 400 steps, which went on after a stop at step 200",
    "local_sgd": "The difference between the weights of two ranks grows, and is 0 after every eighth step",
    "lora": "Left: in 4 bits the base model takes a sixth of the bytes. Right: the losses of LoRA and QLoRA fall alike",
    "metrics": "The confusion matrix of 285 samples, the same on one process and on three",
    "notebook": "How many of 1,797 digits are read right, over three epochs",
    "own_strategy": "The losses with the strategy on two processes, and without on one: each pair is the same",
    "own_tracker": "The logged loss falls until it is below 0.001, where all ranks stop",
    "preemption": "The loss of a preempted and resumed run lies on that of a run that nobody disturbed",
    "profiling": "A timeline of three training steps: operators, backward, optimizer",
    "reinforcement_learning": "The number of moves in a game, of at most 200, rises over 60 rounds",
    "schedule_free": "How many of 360 digits are read right rises over five epochs without a schedule",
    "sharded": "Parameters, gradients, optimizer state and peak of one rank: DDP, and sharded over two and four",
    "text_classification": "The share of lines that are told right lies above that of always giving the same answer",
}
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
    """Return Markdown that shows an example's picture, with what one sees in it."""
    if example.stem not in PICTURES:
        raise ValueError(
            f"Draw `docs/images/{example.stem}.png` for `{example}`, and describe it in `PICTURES`."
        )
    return f"![{PICTURES[example.stem]}](../images/{example.stem}.png)"


def _shown(example: Path) -> Iterator[str]:
    """Yield an example's picture, and the output of the commands that it was drawn from."""
    output = example.parent / "output" / f"{example.stem}.txt"
    yield f"{_picture(example)}\n"
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
