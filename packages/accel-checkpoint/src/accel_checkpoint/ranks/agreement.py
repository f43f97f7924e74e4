"""Agreement between the ranks on the outcome of a step, without collectives and from any thread."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Protocol, Self
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from accel_checkpoint.ranks.heartbeat import Connection, Heartbeat
from accel_state import current_runtime, has_runtime
from accel_state.arrival import debug_deadline_s
from accel_state.errors import CheckpointError

logger = logging.getLogger(__name__)
STALLED_S = 1800.0
"""Timeout for a rank that has started a step, or made progress, and then writes and reads nothing."""
_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05
_CHECKS_PER_S = 4000
"""Upper limit on the requests per second of all waiting ranks together."""
_LIVENESS_CHECK_S = 0.5
"""How often to check whether the missing ranks are still alive."""
_GRACE_S = 10.0
"""Extra wait of the other ranks, so that rank 0 can name the missing ones first."""
_READERS_TIMEOUT_S = 10.0
"""How long rank 0 waits for the other ranks to read the verdict."""
_WAITING = (
    "Rank %s is waiting for rank %s, which is alive: %.3f GB of checkpoints are written or read so far."
)
_AGREED = "agreed: "
"""Prefix of a verdict; without it, the text is the reason why there is none."""
_counts: WeakKeyDictionary[dist.ProcessGroup, Counter[str]] = WeakKeyDictionary()
"""Rounds by their kind per process group, over all agreements of this process: their store keys have these numbers."""


Merge = Callable[[Sequence[str]], str]
"""Merges the reports of all ranks, in rank order, into one verdict."""


class Presence(Protocol):
    """Detects ranks that have ended, and the progress of other ranks."""

    num_bytes: int
    """Bytes that the ranks of the last call of `ended` had written and read by then."""

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks among ``ranks`` that will never report; does not block for long."""
        ...


class Agreement:
    """Rounds: every rank sends a report, and rank 0 merges the reports into one verdict for all.

    This class uses an object collective, for runs without a shared store and for a single process.

    Args:
        gather: Returns the objects of all ranks in a list; in a single process, its argument.
        rank: This process.
        world_size: Number of ranks.
    """

    def __init__(
        self, gather: Callable[[list[str]], list[str]] = list, *, rank: int = 0, world_size: int = 1
    ) -> None:
        self._gather = gather
        self.rank = rank
        self.world_size = world_size
        self._counts = Counter[str]()

    def next_topic(self, kind: str) -> str:
        """Return a unique name for a round, the same on every rank if every rank starts the same rounds of a kind."""
        self._counts[kind] += 1
        return f"{kind}-{self._counts[kind]}"

    def agree(
        self, topic: str, report: str, merge: Merge, *, wait_s: float | None = None, is_begun: bool = False
    ) -> str:
        """Return the verdict on ``topic``; blocks until every rank has reported.

        Args:
            topic: Name of the round; the same on every rank, and unique.
            report: This rank's report.
            merge: Merges the reports; called on rank 0 if there is a store.
            wait_s: If there is a store, after this time rank 0 merges the reports so far, with empty ones for the
                missing ranks.
            is_begun: Whether every rank has already started this, and so has more time; see `STALLED_S`.

        Raises:
            CheckpointError: If a rank has ended, or has not reported before the deadline.
        """
        return merge(self._gather([report]))

    def agree_on(self, kind: str, report: str, merge: Merge, *, is_begun: bool = False) -> str:
        """Return the verdict of the next round of a kind; see `agree`."""
        return self.agree(self.next_topic(kind), report, merge, is_begun=is_begun)

    def flag(self, name: str, *, is_set: bool = False) -> bool:
        """Whether any rank has set a flag; with ``is_set`` this rank sets it. Without a store, always False."""
        return False


def first(reports: Sequence[str]) -> str:
    """Return the report of rank 0, as the verdict."""
    return reports[0]


class StoreAgreement(Agreement):
    """Reports and verdicts in the store of the process group.

    The number of requests per rank and round does not depend on the number of ranks. Only rank 0 reads all reports.
    A rank that writes or reads files of a checkpoint is waited for beyond the deadline.

    Args:
        store: The store.
        rank: This process.
        world_size: Number of ranks.
        deadline_s: How long to wait for the other ranks; the timeout of the process group is a good choice.
        presence: Detects ranks that have ended, so that no rank waits for them.
        counts: Rounds by their kind so far, of all agreements in this store.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        world_size: int,
        deadline_s: float,
        presence: Presence,
        counts: Counter[str] | None = None,
    ) -> None:
        self._store = Connection(store)
        self._presence = presence
        # The other ranks poll less often with more ranks: else rank 0's store could not serve thousands of them.
        self._longest_wait_s = (
            _LONGEST_WAIT_S if rank == 0 else max(_LONGEST_WAIT_S, world_size / _CHECKS_PER_S)
        )
        self._liveness_check_s = max(_LIVENESS_CHECK_S, 10 * self._longest_wait_s)
        super().__init__(rank=rank, world_size=world_size)
        self._counts = self._counts if counts is None else counts
        self.deadline_s = deadline_s

    def agree(
        self, topic: str, report: str, merge: Merge, *, wait_s: float | None = None, is_begun: bool = False
    ) -> str:
        """Return the verdict."""
        deadline_s = max(self.deadline_s, STALLED_S) if is_begun else self.deadline_s
        with self._reporting_a_lost_store(topic):
            if self.rank == 0:
                return self._decide(topic, report, merge, wait_s, deadline_s)
            self._store.set(f"{topic}/report/{self.rank}", report)
            verdict = self._verdict(topic, deadline_s, is_call=wait_s is not None)
            self._store.delete_key(f"{topic}/report/{self.rank}")
            with contextlib.suppress(dist.DistError):  # rank 0 then waits a few seconds longer
                if self._store.add(f"{topic}/readers", 1) == self.world_size - 1:
                    self._store.set(f"{topic}/read", "")
            return verdict

    def flag(self, name: str, *, is_set: bool = False) -> bool:
        """Whether the store has the flag."""
        if is_set:
            self._store.set(f"flag/{name}", "")
        return bool(self._store.check([f"flag/{name}"]))

    def _verdict(self, topic: str, deadline_s: float, *, is_call: bool) -> str:
        """Return the verdict of rank 0; in debug mode, wait only briefly for a call of rank 0."""
        is_brief = is_call and has_runtime() and current_runtime().debug
        limit_s, grace_s = (debug_deadline_s(), 0.0) if is_brief else (deadline_s, _GRACE_S)
        # The grace lets rank 0, which names the missing ranks, report first.
        for is_over in self._until([f"{topic}/verdict/0"], limit_s + grace_s):
            if self._presence.ended([0]) and not self._store.check([f"{topic}/verdict/0"]):
                raise CheckpointError(f"Rank 0 has ended before it reached `{topic}`; see its output.")
            if is_over:
                # Rank 0 may begin this round later: it must not take this report for one of that time.
                self._store.delete_key(f"{topic}/report/{self.rank}")
                kind, _, number = topic.rpartition("-")
                if str(self._counts[kind]) == number:
                    self._counts[kind] -= 1
                raise CheckpointError(
                    f"Rank 0 did not reach `{topic}` within {limit_s:g} s. It may have failed; see its output."
                )
        [answer] = self._store.values([f"{topic}/verdict/0"])
        if not answer.startswith(_AGREED):
            raise CheckpointError(answer)
        return answer.removeprefix(_AGREED)

    def _decide(self, topic: str, report: str, merge: Merge, wait_s: float | None, deadline_s: float) -> str:
        """On rank 0: wait for all reports and store the verdict, or else the error, so that no rank keeps waiting."""
        try:
            reports = [report, *self._reports(topic, wait_s, deadline_s)]
            verdict = merge(reports)
        except BaseException as error:
            reason = f"Rank 0 has stopped waiting for the other ranks: {type(error).__name__}."
            reason = str(error) if isinstance(error, CheckpointError) else reason
            with contextlib.suppress(dist.DistError):  # the error at hand is the one to raise
                self._store.set(f"{topic}/verdict/0", reason)
            raise
        self._store.set(f"{topic}/verdict/0", f"{_AGREED}{verdict}")
        if all(reports) or wait_s is None:
            self._wait_for_readers(topic)
        return verdict

    def _reports(self, topic: str, wait_s: float | None, deadline_s: float) -> list[str]:
        """Wait for the reports of the other ranks, and return them."""
        if self.world_size == 1:
            return []
        others, missing = range(1, self.world_size), list[int]()
        for is_over in self._until([f"{topic}/report/{rank}" for rank in others], deadline_s, wait_s):
            # A rank that has ended may have reported before.
            ended = self._missing(f"{topic}/report", self._presence.ended(others))
            if ended and wait_s is None:
                raise CheckpointError(
                    f"Rank {_listed(ended)} has ended before it reached `{topic}`; see its output."
                )
            # One request per rank, so only once.
            missing = self._missing(f"{topic}/report", others) if is_over or ended else []
            if missing and wait_s is not None:
                break
            if missing:
                raise CheckpointError(
                    f"Rank {_listed(missing)} did not reach `{topic}` within {deadline_s:g} s. "
                    "It may have failed; see its output."
                )
        keys = [f"{topic}/report/{rank}" for rank in others if rank not in missing]
        values = dict(zip(keys, self._store.values(keys) if keys else [], strict=True))
        return [values.get(f"{topic}/report/{rank}", "") for rank in others]

    def _wait_for_readers(self, topic: str) -> None:
        """Wait until all ranks have read the verdict, since the store may end with rank 0; then delete the keys."""
        others = range(1, self.world_size)
        for is_over in self._until([f"{topic}/read"] if others else [], wait_s=_READERS_TIMEOUT_S):
            if is_over or len(self._presence.ended(others)) == len(others):
                return
        with contextlib.suppress(dist.DistError):
            for name in ("verdict/0", "readers", "read"):
                self._store.delete_key(f"{topic}/{name}")

    def _until(
        self, keys: list[str], deadline_s: float = math.inf, wait_s: float | None = None
    ) -> Iterator[bool]:
        """Poll until ``keys`` exist; yield at intervals whether ``wait_s``, or the deadline, has passed."""
        # Polling, because Ctrl-C cannot interrupt a blocking call to the store.
        pause_s, now_s, num_bytes = _FIRST_WAIT_S, time.monotonic(), -1
        end_s = now_s + min(deadline_s, math.inf if wait_s is None else wait_s)
        notice_s = now_s + self.deadline_s
        check_s = min(now_s + self._liveness_check_s, end_s)
        while keys and not self._store.check(keys):
            now_s = time.monotonic()
            if now_s > check_s:
                check_s = now_s + self._liveness_check_s
                yield now_s > end_s
                before, num_bytes = num_bytes, self._presence.num_bytes
                if wait_s is None and before not in (-1, num_bytes):
                    end_s = max(end_s, now_s + STALLED_S)
                if wait_s is None and now_s > notice_s and self.rank <= 1:
                    notice_s += self.deadline_s
                    awaited = [key.rpartition("/")[2] for key in keys if not self._store.check([key])]
                    logger.warning(_WAITING, self.rank, ", ".join(awaited), num_bytes / 1e9)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self._longest_wait_s)

    def _missing(self, prefix: str, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if not self._store.check([f"{prefix}/{rank}"])]

    @contextlib.contextmanager
    def _reporting_a_lost_store(self, topic: str) -> Iterator[None]:
        try:
            yield
        except dist.DistError as error:
            raise CheckpointError(
                f"The ranks cannot agree on `{topic}`: the store of the process group does not answer "
                f"({str(error).splitlines()[0]}). Rank 0, or the launcher that hosts it, has ended "
                "or cannot be reached; see its output."
            ) from error


def agreement_of(*, rank: int, world_size: int, gather: Callable[[list[str]], list[str]]) -> Agreement:
    """Return the agreement that suits this run.

    Args:
        rank: This process.
        world_size: Number of ranks.
        gather: An object collective, used if there is no process group.
    """
    if world_size == 1:
        return Agreement()
    if not dist.is_available() or not dist.is_initialized():
        return Agreement(gather, rank=rank, world_size=world_size)
    group = dist.group.WORLD
    assert group is not None
    store = group.get_group_store()
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]  # torch's stubs lack it
    prefix = "accel_checkpoint"
    # A separate connection, since other calls on the group's connection may block for minutes, and a rank without
    # heartbeats for that long would count as ended.
    separate: Store = store.clone()  # type: ignore[attr-defined]  # torch's stubs lack it
    return StoreAgreement(
        PrefixStore(prefix, store),
        rank=rank,
        world_size=world_size,
        deadline_s=timeout.total_seconds(),
        presence=Heartbeat(PrefixStore(prefix, separate), rank=rank),
        counts=_counts.setdefault(group, Counter()),
    )


class ReplacedError(CheckpointError):
    """Another save has replaced the checkpoint; raised on every rank."""


class DeferredError:
    """Defers the error of a `with` block until the other ranks know about it. Every rank must call `agree` after it.

    Args:
        agree: Exchanges reports with the other ranks, such as `Agreement.agree_on`.
        topic: Name of the step.
        failed: The start of the message on the ranks that did not fail, such as "The checkpoint `a` was not loaded".
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
        """Return rank 0's ``value``, unless any rank failed. Every rank must call it; it blocks until all have.

        Args:
            value: This rank's value.
            merge: Merges the values of all ranks; by default, returns rank 0's. Not called if any rank failed.
            is_replaced: Whether another save has replaced the checkpoint; if any rank sees that, errors are ignored.

        Raises:
            ReplacedError: If another save has replaced the checkpoint.
            CheckpointError: If another rank failed. If this rank failed, its error is raised.
        """

        def merged(reports: Sequence[str]) -> str:
            values, errors, replaced = zip(*map(json.loads, reports), strict=True)
            reasons = "; ".join(f"rank {rank}: {error}" for rank, error in enumerate(errors) if error)
            is_void = any(replaced) or bool(reasons)
            return json.dumps(["" if is_void else merge(values), reasons, any(replaced)])

        reason = "" if self._error is None else reason_of(self._error)
        report = json.dumps([value, reason, is_replaced])
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


def reason_of(error: BaseException) -> str:
    """Describe an error in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
