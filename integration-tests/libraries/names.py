"""Prints what libraries use of `accelerate` and what of that is missing, as JSON; run with `accelerate` meaning accel.

Their source is read, and not imported: much of it needs other packages.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = (
    "diffusers",
    "lm_eval",
    "peft",
    "pytorch_accelerated",
    "sentence_transformers",
    "transformers",
    "trl",
)
STATES = {"AcceleratorState", "GradientState", "PartialState", "gradient_state"}


def trees() -> Iterator[ast.Module]:
    """Yield the parsed files that have to do with `accelerate`."""
    for library in LIBRARIES:
        for folder in find_spec(library).submodule_search_locations:
            for file in sorted(Path(folder).rglob("*.py")):
                text = file.read_text(encoding="utf-8", errors="replace")
                if "accelera" in text or "_hf_hook" in text:
                    yield ast.parse(text)


def dotted(node: ast.expr) -> list[str]:
    """Return the names of an expression such as `a.b().c`, without the first where that is no name."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Attribute):
        return [*dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else []


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield `module:name` for what is imported from `accelerate` or reached in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] == "accelerate":
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.name}:" for alias in node.names if alias.name.split(".")[0] == "accelerate")
        elif isinstance(node, ast.Attribute) and dotted(node)[0] == "accelerate":
            yield f"accelerate:{'.'.join(dotted(node)[1:])}"


def attributes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the owner and the name of attributes of objects of `accelerate`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = dotted(node.value)[-1:] or [""]
            if (
                owner[0] in {"accelerator", "_accelerator"}
                and len(dotted(node.value)) > 1
                and "torch" not in dotted(node)
            ):
                yield "Accelerator", node.attr
            elif owner[0] in STATES or owner[0] == "_hf_hook":
                yield owner[0].replace("gradient_state", "GradientState"), node.attr
        elif isinstance(node, ast.Constant) and node.value in ("_hf_hook", "_old_forward"):
            yield "Module", node.value


def resolves(entry: str) -> bool:
    """Whether `module:name.member` is there."""
    module, _, path = entry.partition(":")
    found = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        try:
            found = getattr(found, name)
        except AttributeError:
            return False
    return True


def main() -> None:
    """Collect, try and print."""
    names: set[str] = set()
    used: set[tuple[str, str]] = set()
    for tree in trees():
        names.update(imported(tree))
        used.update(attributes(tree))
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    print(
        json.dumps(
            {
                "num_names": len(names),
                "missing": sorted(name for name in names if not resolves(name)),
                "missing_of_accelerator": sorted(
                    name for owner, name in used if owner == "Accelerator" and not hasattr(accelerator, name)
                ),
                "private": sorted(
                    f"{owner}.{name}" for owner, name in used if name.startswith("_") or owner == "_hf_hook"
                ),
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
