from __future__ import annotations

import pytest
from torch import nn

from accel_bigmodel import get_balanced_memory, get_max_memory
from accel_state.errors import ConfigError, UnknownNameError


class Small(nn.Module):
    """236 bytes: 64, 72 and 100."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(3, 4)
        self.batchnorm = nn.BatchNorm1d(4)
        self.linear2 = nn.Linear(4, 5)


def test_without_limits_the_free_memory_counts():
    limits = get_max_memory()
    assert limits["cpu"] > 2**20
    assert list(limits)[-1] == "cpu"


def test_limits_are_read_and_put_in_order():
    given = {"disk": "1TB", "cpu": "2GiB", 1: "10MB", 0: 5}
    assert list(get_max_memory(given).items()) == [(0, 5), (1, 10**7), ("cpu", 2**31), ("disk", 10**12)]


def test_wrong_limits_are_refused():
    with pytest.raises(UnknownNameError, match="`gpu`.*Did you mean `cpu`"):
        get_max_memory({"gpu": 1})
    with pytest.raises(ConfigError, match="`much` is not a size"):
        get_max_memory({0: "much"})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({0: 200, 1: 200}, {0: 200, 1: 200}),
        ({0: 300, 2: 300}, {0: 215, 2: 300}),  # 236 / 2 and a quarter more than the average layer
        ({0: 300, 1: 500}, {0: 215, 1: 500}),
        ({0: 300, "cpu": 1000}, {0: 300, "cpu": 1000}),
        ({0: 0, 1: 300, 2: 300}, {0: 0, 1: 215, 2: 300}),
    ],
)
def test_accelerators_share_evenly_and_the_last_keeps_all(given, wanted):
    assert get_balanced_memory(Small(), given) == wanted


def test_the_first_accelerator_can_be_kept_free():
    model = nn.Sequential(Small(), Small(), Small())
    assert get_balanced_memory(model, {0: 500, 1: 500, 2: 500}, low_zero=True) == {0: 0, 1: 451, 2: 500}
    assert get_balanced_memory(model, {0: 500, 1: 300, 2: 300}, low_zero=True)[0] == 108
