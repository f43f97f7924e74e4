"""Public docstrings name shapes and devices of tensors, the errors raised, and the ranks that must call."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.workspace import ROOT, read_packages

NOT_YET = {"accel-backends", "accel-launch"}
"""Packages whose docstrings do not pass yet."""

SHAPE = re.compile(
    r"\bshapes?\b|\d-dim|\bdim(ension)?s?\b|\bscalars?\b|\belements?\b|\brows?\b|\bviews?\b|``\([^`]*,[^`]*\)``",
    re.I,
)
DEVICE = re.compile(r"\bdevices?\b|\bCPU\b|\bGPU|\bmeta\b|\bhost\b|\bcuda\b", re.I)
RANKS = re.compile(r"\branks?\b|\bprocess(es)?\b", re.I)
COLLECTIVE = re.compile(
    r"all_(gather|reduce|to_all)\w*|barrier|broadcast_object_list|gather_(each|object)|init_process_group"
    r"|monitored_barrier|new_group|reduce_scatter\w*|scatter_object_list|wait_for_everyone"
)
AMBIGUOUS = re.compile(r"broadcast|gather|recv|reduce|scatter|send|agree|exchange")
"""Collectives if they come from one of these modules; `tensor.gather` and `functools.reduce` are none."""
COMMUNICATING = ("accel_ops", "accel_checkpoint.ranks", "torch.distributed")
CONSTRUCTORS = {"__init__", "__post_init__"}
"""Their errors are in the docstring of the class; their tensors are attributes."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Yield the functions, constructors and methods without an underscore, with the class of a method."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for owner, nodes in [(None, tree.body), *((each, each.body) for each in classes)]:
        for function in (node for node in nodes if isinstance(node, Function)):
            is_public = not function.name.startswith("_") or function.name in CONSTRUCTORS
            if is_public and not any("overload" in ast.unparse(each) for each in function.decorator_list):
                yield function, owner


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield what the function itself executes: not the bodies of functions and classes that it defines."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


def has_tensors(function: Function) -> bool:
    """Whether a parameter or the result is annotated as a tensor, or as a container of tensors."""
    arguments = (node for node in ast.walk(function.args) if isinstance(node, ast.arg))
    notes = [function.returns, *(each.annotation for each in arguments)]
    return any(note is not None and re.search(r"\bTensor\b", ast.unparse(note)) for note in notes)


def raised(function: Function, errors: set[str]) -> set[str]:
    """Return those of ``errors`` that the function raises itself: `raise X(...)`, `raise X.of(...)`."""
    calls = [node.exc for node in own_nodes(function) if isinstance(node, ast.Raise) and node.exc is not None]
    return {name for call in calls if (name := re.split(r"\W", ast.unparse(call))[0]) in errors}


def communicates(function: Function, imported: set[str]) -> bool:
    """Whether the function itself calls a collective."""
    for node in own_nodes(function):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            is_from = owner in ("dist", "torch.distributed") or (not owner and name in imported)
            if COLLECTIVE.fullmatch(name) or (is_from and AMBIGUOUS.fullmatch(name)):
                return True
    return False


def problems_of(file: Path, errors: set[str]) -> Iterator[str]:
    """Yield what the docstrings of one file leave out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {
        each.name for node in froms for each in node.names if (node.module or "").startswith(COMMUNICATING)
    }
    for function, owner in public_functions(tree):
        text = ast.get_docstring(function) or ""
        where = f"{file}:{function.lineno}: `{function.name}`"
        if owner is not None and function.name in CONSTRUCTORS:
            text += ast.get_docstring(owner) or ""
        elif owner is not None and owner.bases and not text:
            continue  # documented by the method that it overrides
        elif has_tensors(function) and not (SHAPE.search(text) and DEVICE.search(text)):
            yield f"{where} has tensors; name their shape and device"
        if "Raises:" not in text and (names := raised(function, errors)):
            yield f"{where} raises {', '.join(sorted(names))}; add `Raises:`"
        if communicates(function, imported) and not RANKS.search(text):
            yield f"{where} communicates; name the ranks that must call it, and whether it blocks"


def problems(root: Path) -> list[str]:
    """Return what the docstrings in the packages of ``root`` leave out."""
    packages = read_packages(root)
    text = (packages["accel-state"].source / "errors.py").read_text(encoding="utf-8")
    errors = {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    files = [file for name, each in packages.items() if name not in NOT_YET for _, file in each.modules()]
    return [line.replace(f"{root}/", "") for file in files for line in problems_of(file, errors)]


if __name__ == "__main__":
    sys.exit("\n".join(problems(ROOT)) or 0)
