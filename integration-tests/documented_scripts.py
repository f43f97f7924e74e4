"""The Python of the documentation as files for type checkers."""

import ast
import builtins
import re
from pathlib import Path

from documented import PAGES, ROOT, Block, fences

# What a type checker says of plain PyTorch, too: a tensor is no `Dataset`, and a `DTensor` is a `Tensor` or None.
# All reports of such a line are left out, as others follow from the first.
OF_TORCH = re.compile(r'"dataset" of type|Argument 1 to "DataLoader"|"?(full_tensor|to_local)"?')


def write_scripts(folder: Path) -> dict[str, list[str]]:
    """Write each page's blocks that are run as one script, and each other block as one.

    A name that is used before it is defined is the reader's. The first line declares it, as `Any`, or an Accelerator.

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
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.text.splitlines()
    missing = sorted(_names_of_the_reader(ast.parse("\n".join(lines))))
    values = {"accelerator": "_Accelerator()"}
    declared = [f"{name} = {values.get(name, 'cast(Any, 0)')}" for name in missing]
    lines[0] = "; ".join(
        ["from typing import Any, cast", "from accel import Accelerator as _Accelerator", *declared]
    )
    return lines


def _names_of_the_reader(tree: ast.Module) -> set[str]:
    """Return the names that are used before a line binds them, or in it."""
    used, bound = dict[str, int](), dict[str, int]()
    for node in ast.walk(tree):  # statements come before what is in them
        match node:
            case ast.Assign():  # its value comes first
                for target in node.targets:
                    for one in ast.walk(target):
                        one.lineno = node.end_lineno
                continue
            case ast.Name(id=name, ctx=ast.Load()):
                used[name] = min(node.lineno, used.get(name, node.lineno))
                continue
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.alias():
                name = (node.asname or node.name).partition(".")[0]
            case ast.ExceptHandler(name=str(name)):
                pass
            case _:
                continue
        bound[name] = min(node.lineno, bound.get(name, node.lineno))
    return {name for name, line in used.items() if line <= bound.get(name, line)} - vars(builtins).keys()


def problems(output: str, scripts: dict[str, list[str]]) -> list[str]:
    """Return the errors in these scripts but those of lines that plain PyTorch has, too."""
    reports = re.findall(r"([\w]+\.py):(\d+)(?::\d+)?( - error: | error: |: error: )(.*)", output)
    of_torch = {(name, line) for name, line, _, text in reports if OF_TORCH.search(text)}
    return [
        f"{name}:{line}: {text}\n    {scripts[name][int(line) - 1].strip()}"
        for name, line, _, text in reports
        if name in scripts and (name, line) not in of_torch
    ]
