"""The Python of the documentation as files for type checkers."""

import re
from pathlib import Path

from documented import PAGES, ROOT, Block, fences

# What a type checker says of plain PyTorch, too: a tensor is no `Dataset`, and a `DTensor` is a `Tensor` or None.
# All reports of such a line are left out, as others follow from the first.
OF_TORCH = re.compile(r'"dataset" of type|Argument 1 to "DataLoader"|"?(full_tensor|to_local)"?')
OF_THE_READER = re.compile(r'Name "\w+" is not defined')


def write_scripts(folder: Path) -> dict[str, list[str]]:
    """Write each page's blocks that are run as one script, and each other block as one.

    Names that no block defines are the reader's: `accelerator`, which the first line defines, and others, of which
    `problems` ignores that they are unknown.

    Returns:
        The lines of each script, by its file name; they have the numbers of the page.
    """
    scripts = {}
    for page in PAGES:
        found = [block for block in fences(page) if block.language == "python"]
        is_run = [block.reason is None and block.run_by is None for block in found]
        parts = [[block for block, runs in zip(found, is_run, strict=True) if runs]]
        parts += [[block] for block, runs in zip(found, is_run, strict=True) if not runs]
        for number, blocks in enumerate(filter(None, parts)):
            stem = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            name = f"{stem}_{number}.py"
            scripts[name] = _lines(blocks)
            (folder / name).write_text("\n".join([*scripts[name], ""]), encoding="utf-8")
    return scripts


def _lines(blocks: list[Block]) -> list[str]:
    lines = ["from accel import Accelerator as _Accelerator; accelerator = _Accelerator()"]
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.text.splitlines()
    return lines


def problems(output: str, scripts: dict[str, list[str]]) -> list[str]:
    """Return the errors in these scripts but those of lines that plain PyTorch has, too."""
    reports = re.findall(r"([\w]+\.py):(\d+)(?::\d+)?( - error: | error: |: error: )(.*)", output)
    of_torch = {(name, line) for name, line, _, text in reports if OF_TORCH.search(text)}
    return [
        f"{name}:{line}: {text}\n    {scripts[name][int(line) - 1].strip()}"
        for name, line, _, text in reports
        if name in scripts and (name, line) not in of_torch and not OF_THE_READER.search(text)
    ]
