"""Tests of offloading, on an execution device that shares its memory with the store and on one that does not."""

from __future__ import annotations

import pytest

from accel_bigmodel.offload.weight import OffloadedWeight


@pytest.fixture(params=["same memory", "second memory"])
def execution_memory(request, monkeypatch):
    """Whether weights are used where they are stored, as on the CPU, or in a copy, as on every accelerator."""
    if request.param == "second memory":
        monkeypatch.setattr(OffloadedWeight, "is_copied", True)
    return request.param
