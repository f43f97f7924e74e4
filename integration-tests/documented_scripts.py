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
    """Return the names that are used at module level before a statement binds them, or anywhere and bound nowhere."""
    bound, missing = {*vars(builtins), "__name__"}, set()
    for statement in tree.body:
        is_definition = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        new = {statement.name} if is_definition else _bound(statement)
        if not is_definition:
            missing |= _used(statement) - bound - new
            values = getattr(statement, "value", None)  # the right side of an assignment comes first
            if values is not None:
                missing |= _used(values) - bound - _bound(values)
        bound |= new
    for statement in tree.body:
        missing |= _used(statement) - bound - _bound(statement)
    return missing


def _used(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def _bound(node: ast.AST) -> set[str]:
    names = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            names.add(one.id)
        elif isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            names.add(one.name)
        elif isinstance(one, ast.alias):
            names.add((one.asname or one.name).partition(".")[0])
        elif isinstance(one, ast.ExceptHandler) and one.name:
            names.add(one.name)
        elif isinstance(one, ast.arg):
            names.add(one.arg)
    return names


def problems(output: str, scripts: dict[str, list[str]]) -> list[str]:
    """Return the errors in these scripts but those of lines that plain PyTorch has, too."""
    reports = re.findall(r"([\w]+\.py):(\d+)(?::\d+)?( - error: | error: |: error: )(.*)", output)
    of_torch = {(name, line) for name, line, _, text in reports if OF_TORCH.search(text)}
    return [
        f"{name}:{line}: {text}\n    {scripts[name][int(line) - 1].strip()}"
        for name, line, _, text in reports
        if name in scripts and (name, line) not in of_torch
    ]
