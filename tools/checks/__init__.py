"""One file per check: ``python -m tools.checks.NAME`` runs one, ``tools/dev.py check`` runs all."""

CHECKS = (
    "lint",
    "formatting",
    "annotations",
    "dependencies",
    "layers",
    "cycles",
    "structure",
    "docstrings",
    "links",
    "workflows",
    "origin",
    "surface",
    "settings_page",
    "settings_table",
    "tracker_table",
    "device_table",
    "gpu_table",
    "engine_table",
    "client_table",
    "dependency_table",
)
