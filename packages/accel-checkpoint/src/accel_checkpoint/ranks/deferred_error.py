"""A step that fails on every rank if it fails on one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Self

from accel_checkpoint.ranks.agreement import Merge, first
from accel_checkpoint.ranks.reports import reason_of
from accel_state.errors import CheckpointError


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

    def agree(self, value: str = "", merge: Merge = first) -> str:
        """Return rank 0's ``value``; if any rank failed, raise its error there, and one that names it elsewhere.

        Args:
            value: This rank's value.
            merge: Merges the values of all ranks, if rank 0's is not what to return. Not called if any rank failed.
        """

        def merged(reports: Sequence[str]) -> str:
            values, errors = zip(*map(json.loads, reports), strict=True)
            reasons = "; ".join(f"rank {rank}: {error}" for rank, error in enumerate(errors) if error)
            return json.dumps(["" if reasons else merge(values), reasons])

        own = "" if self._error is None else reason_of(self._error)
        agreed, reasons = json.loads(self._agree(self._topic, json.dumps([value, own]), merged))
        if self._error is not None:
            raise self._error
        if reasons:
            raise CheckpointError(f"{self._failed} ({reasons}).")
        return str(agreed)
