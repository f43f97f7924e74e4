import pytest
from torch.distributed import HashStore


class RanksOfOtherMachines:
    """A store whose ranks cannot look each other up."""

    def __init__(self):
        self.store = HashStore()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def set(self, key, value):
        self.store.set(key, "00000000-1-5" if key.startswith("process/") else value)


@pytest.fixture
def distant_ranks():
    return RanksOfOtherMachines()
