"""A step that fails on every rank if it fails on one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Self

from accel_checkpoint.ranks.agreement import Merge, first
from accel_checkpoint.ranks.reports import reason_of
from accel_state.errors import CheckpointError


class ReplacedError(CheckpointError):
    """Another save has replaced the checkpoint; raised on every rank."""


class DeferredError:
    """Defers the error of a `with` block until the other ranks know about it. Every rank must call `agree` after it.

    Args:
        agree: Exchanges reports with the other ranks, such as `Saver.agree`.
        topic: Name of the step.
        failed: What to say on the ranks that did not fail, such as "The checkpoint `a` was not loaded".
    """

    def __init__(self, agree: Callable[[str, str, Merge], str], topic: str, *, failed: str) -> None:
        self._agree, self._topic, self._failed = agree, topic, failed
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        # Ctrl-C and the like propagate at once; any other error is first reported to the other ranks.
        self._error = error if isinstance(error, Exception) else None
        return self._error is not None

    def agree(self, value: str = "", merge: Merge = first, *, is_replaced: bool = False) -> str:
        """Return rank 0's ``value``; if any rank failed, raise its error there, and one that names it elsewhere.

        Args:
            value: This rank's value.
            merge: Merges the values of all ranks, if rank 0's is not what to return. Not called if any rank failed.
            is_replaced: Whether another save has replaced the checkpoint; if any rank sees that, errors do not count.
        """

        def merged(reports: Sequence[str]) -> str:
            values, errors, replaced = zip(*map(json.loads, reports), strict=True)
            reasons = "; ".join(f"rank {rank}: {error}" for rank, error in enumerate(errors) if error)
            is_void = any(replaced) or bool(reasons)
            return json.dumps(["" if is_void else merge(values), reasons, any(replaced)])

        own = "" if self._error is None else reason_of(self._error)
        report = json.dumps([value, own, is_replaced])
        agreed, reasons, is_replaced = json.loads(self._agree(self._topic, report, merged))
        if is_replaced:
            raise ReplacedError(
                f"{self._failed}, since another save replaces it. Load a checkpoint that no running job replaces."
            )
        if self._error is not None:
            raise self._error
        if reasons:
            raise CheckpointError(f"{self._failed} ({reasons}).")
        return str(agreed)
