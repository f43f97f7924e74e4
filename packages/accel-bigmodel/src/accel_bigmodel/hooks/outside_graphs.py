"""Run hooks outside of the graphs of ``torch.compile``; imported only while a graph is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _run(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


run_outside_graph: Callable[..., Any] = torch.compiler.disable(_run)  # type: ignore[no-untyped-call]
"""Calls its first argument with the other arguments, after a graph break."""
