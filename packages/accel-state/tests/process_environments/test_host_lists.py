from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_state.errors import ConfigError
from accel_state.process_environments.host_lists import expand_counts, first_host, iter_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,7],gpu5", ["n01", "n02", "n03", "n7", "gpu5"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1-2]-ib,login.cluster.org", ["n1-ib", "n2-ib", "login.cluster.org"]),
        ("rack[1-2]n[3-4]", ["rack1n3", "rack1n4", "rack2n3", "rack2n4"]),
        (" a , b ", ["a", "b"]),
    ],
)
def test_hosts_are_written_out_in_order(text, hosts):
    assert list(iter_hosts(text, variable="V")) == hosts
    assert first_host(text, variable="V") == hosts[0]


@pytest.mark.parametrize(
    "text", ["", ",", "a,,b", "n[1-", "n1-3]", "n[3-1]", "n[a-b]", "n[]", "n[1,]", "n[[1]]"]
)
def test_text_that_is_no_list_of_hosts_is_refused_with_the_variable(text):
    with pytest.raises(ConfigError, match="`SOME_LIST` is `.*`, but it must be a list of hosts"):
        list(iter_hosts(text, variable="SOME_LIST"))


def test_the_first_host_of_an_enormous_list_is_found_at_once():
    assert first_host("n[0000000000-9999999999]", variable="V") == "n0000000000"


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,8(x2)", [1, 8, 8]), (" 2 , 3 ", [2, 3])]
)
def test_counts_are_written_out_per_node(text, counts):
    assert expand_counts(text, variable="V") == counts


@pytest.mark.parametrize("text", ["", "a", "2(x", "2x3", "2(3)", "1,,2", "-1"])
def test_text_that_is_no_list_of_counts_is_refused_with_the_variable(text):
    with pytest.raises(ConfigError, match=r"`SOME_COUNTS` is `.*`, but it must look like `2\(x3\),1`"):
        expand_counts(text, variable="SOME_COUNTS")


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20, unique=True), st.integers(1, 4))
def test_any_set_of_numbers_survives_the_short_notation(numbers, width):
    numbers.sort()
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    inside = ",".join(
        f"{run[0]:0{width}}-{run[-1]:0{width}}" if len(run) > 1 else f"{run[0]:0{width}}" for run in runs
    )
    assert list(iter_hosts(f"n[{inside}]", variable="V")) == [f"n{number:0{width}}" for number in numbers]
