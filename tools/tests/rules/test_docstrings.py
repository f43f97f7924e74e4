"""Public docstrings name shapes and devices of tensors, the errors raised, and the ranks that must call."""

import ast
import re

import pytest

from tools.workspace import read_packages

PACKAGES = read_packages()
CHECKED = [PACKAGES[name] for name in PACKAGES if name not in ("accel-backends", "accel-launch")]
"""Those of the other two do not pass yet."""
ERRORS = re.findall(
    r"(?m)^class (\w+)", (PACKAGES["accel-state"].source / "errors.py").read_text(encoding="utf-8")
)
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
CONSTRUCTORS = ("__init__", "__post_init__")
"""Their errors are in the docstring of the class; their tensors are attributes."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(tree):
    """Yield the functions, constructors and methods without an underscore, with the class of a method."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for owner, nodes in [(None, tree.body), *((each, each.body) for each in classes)]:
        for function in (node for node in nodes if isinstance(node, FUNCTIONS)):
            is_public = not function.name.startswith("_") or function.name in CONSTRUCTORS
            if is_public and not any("overload" in ast.unparse(each) for each in function.decorator_list):
                yield function, owner


def own_nodes(function):
    """Yield what the function itself executes: not the bodies of functions and classes that it defines."""
    pending = list(function.body)
    while pending:
        yield (node := pending.pop())
        if not isinstance(node, FUNCTIONS | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


def raised(function):
    """Return the errors of ours that the function raises itself: `raise X(...)`, `raise X.of(...)`."""
    causes = [
        node.exc for node in own_nodes(function) if isinstance(node, ast.Raise) and node.exc is not None
    ]
    return {re.split(r"\W", ast.unparse(cause))[0] for cause in causes} & set(ERRORS)


def communicates(function, imported):
    """Whether the function itself calls a collective."""
    calls = (ast.unparse(node.func) for node in own_nodes(function) if isinstance(node, ast.Call))
    for owner, _, name in (call.rpartition(".") for call in calls):
        is_from = owner in ("dist", "torch.distributed") or (not owner and name in imported)
        if COLLECTIVE.fullmatch(name) or (is_from and AMBIGUOUS.fullmatch(name)):
            return True
    return False


def left_out(file):
    """Yield what the docstrings of a file leave out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node.names for node in froms if (node.module or "").startswith(COMMUNICATING)]
    imported = {each.name for names in ours for each in names}
    for function, owner in public_functions(tree):
        text, where = ast.get_docstring(function) or "", f"{file}:{function.lineno}: `{function.name}`"
        signature = " ".join(ast.unparse(each) for each in (function.args, function.returns) if each)
        if owner is not None and function.name in CONSTRUCTORS:
            text += ast.get_docstring(owner) or ""
        elif owner is not None and owner.bases and not text:
            continue  # documented by the method that it overrides
        elif re.search(r"\bTensor\b", signature) and not (SHAPE.search(text) and DEVICE.search(text)):
            yield f"{where} has tensors; name their shape and device"
        if "Raises:" not in text and (names := raised(function)):
            yield f"{where} raises {', '.join(sorted(names))}; add `Raises:`"
        if communicates(function, imported) and not RANKS.search(text):
            yield f"{where} communicates; name the ranks that must call it, and whether it blocks"


@pytest.mark.parametrize("package", CHECKED, ids=[package.name for package in CHECKED])
def test_public_docstrings_leave_nothing_out(package):
    assert [line for _, file in package.modules() for line in left_out(file)] == []
