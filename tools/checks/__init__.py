"""What ``tools/dev.py check`` runs: programs that others keep, and a file here for what none of them checks."""

from collections.abc import Mapping

_OURS = ("cycles", "dependencies", "structure", "docstrings", "text", "surface", "ceilings")
_ZIZMOR = "import os, sys; os.execvp('zizmor', ['zizmor', *sys.argv[1:]])"
_LINT_IMPORTS = "from importlinter.cli import lint_imports_command as command; command()"

CHECKS: Mapping[str, tuple[str, ...]] = {
    "lint": ("-m", "ruff", "check", "--quiet", "."),
    "formatting": ("-m", "ruff", "format", "--check", "--quiet", "."),
    "annotations": ("-m", "mypy", "--no-error-summary"),
    "layers": ("-c", _LINT_IMPORTS, "--no-cache", "--no-logo"),
    "workflows": ("-c", _ZIZMOR, "--offline", "--quiet", "--pedantic", ".github/workflows"),
    **{name: ("-m", f"tools.checks.{name}") for name in _OURS},
    "gpu_table": ("-m", "tools.gpu.results"),
}
"""Arguments of Python, in the root of the checkout, by the name of a check."""

UPDATES: Mapping[str, tuple[str, ...]] = {
    "lint": ("-m", "ruff", "check", "--quiet", "--fix", "."),
    "formatting": ("-m", "ruff", "format", "--quiet", "."),
    "surface": (*CHECKS["surface"], "--update"),
    "ceilings": (*CHECKS["ceilings"], "--update"),
    "gpu_table": (*CHECKS["gpu_table"], "--update"),
}
"""The checks that can repair what they find, and how."""
