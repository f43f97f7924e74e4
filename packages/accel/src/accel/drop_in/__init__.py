"""The drop-in: libraries that import `accelerate` use accel, unchanged.

Importing this module switches that on for the process, before anything imports `accelerate`::

    import accel.drop_in
    from transformers import Trainer

`python -m accel.drop_in script.py` and ``accel launch --drop_in script.py`` do it for unchanged scripts and
the processes they start, ``accel drop-in install`` for a Python environment. Every name is the same object under
both paths, and `importlib.metadata` has the version of Accelerate whose interface is offered.
"""

from accel.drop_in.finder import INTERFACE_VERSION, activate, deactivate, is_active

__all__ = ["INTERFACE_VERSION", "activate", "deactivate", "is_active"]

activate()
