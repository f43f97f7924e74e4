"""A connection to the store of a process group, which is opened again after it broke."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store


class Connection:
    """Has the methods of a store; a request whose connection broke is repeated over a new one, unless it is `add`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_broken = False
        # The store answers no `set`, so one may be lost until a later request is answered.
        self._unanswered: dict[str, str] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._request, name)

    def values(self, keys: Sequence[str]) -> list[str]:
        """Return the values of existing keys, in one request if the store supports it."""
        if self._store.has_extended_api():  # type: ignore[attr-defined]  # torch's stubs lack it
            return [value.decode() for value in self._request("multi_get", list(keys))]
        return [self._request("get", key).decode() for key in keys]

    def _request(self, name: str, *args: Any) -> Any:
        try:
            answer = getattr(self._open(), name)(*args)
        except dist.DistNetworkError:
            was_broken, self._is_broken = self._is_broken, True
            if was_broken or name == "add":  # it may have been counted
                raise
            answer = getattr(self._open(), name)(*args)
        self._unanswered = {**self._unanswered, args[0]: args[1]} if name == "set" else {}
        return answer

    def _open(self) -> Store:
        if self._is_broken:
            inner = self._store
            while isinstance(inner, PrefixStore):
                inner = inner.underlying_store
            try:
                # If nobody listens any more, `clone` would try for minutes and print stack traces.
                socket.create_connection((inner.host, inner.port), timeout=10).close()  # type: ignore[attr-defined]
            except OSError as error:
                raise dist.DistNetworkError(f"a new connection failed: {error}") from error
            self._store, self._is_broken = self._store.clone(), False  # type: ignore[attr-defined]  # likewise
            for key, value in self._unanswered.items():
                self._store.set(key, value)
        return self._store
