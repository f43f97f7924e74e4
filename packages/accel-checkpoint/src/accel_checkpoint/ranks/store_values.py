"""Read values from the store of a process group."""

from __future__ import annotations

from collections.abc import Sequence

from torch._C._distributed_c10d import Store


def values_of(store: Store, keys: Sequence[str]) -> list[str]:
    """Return the values of existing keys, in one request if the store supports it."""
    if store.has_extended_api():  # type: ignore[attr-defined]  # torch's stubs lack it
        return [value.decode() for value in store.multi_get(list(keys))]
    return [store.get(key).decode() for key in keys]
