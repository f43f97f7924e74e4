"""Imported by Python at its start where this folder is in PYTHONPATH: switches the drop-in on."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

import accel.drop_in  # noqa: F401

# The environment's module of this name, which this one hides.
_others = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
_spec = PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(module_from_spec(_spec))
