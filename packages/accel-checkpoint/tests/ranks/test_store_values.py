import pytest
from torch.distributed import FileStore, HashStore

from accel_checkpoint.ranks.store_values import values_of


@pytest.mark.parametrize("kind", ["hash", "file"])
def test_values_come_in_the_order_of_their_keys_from_any_store(tmp_path, kind):
    store = HashStore() if kind == "hash" else FileStore(str(tmp_path / "store"), 1)
    for key in ("a", "b", "c"):
        store.set(key, f"of {key}")
    assert values_of(store, ["c", "a"]) == ["of c", "of a"]
    assert values_of(store, []) == []
