from __future__ import annotations

import pytest

from accel_launch.launchers.hosts import Host, hosts_of, num_ranks_on_each
from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a,b", (Host("a"), Host("b"))),
        ("me@a.example:4, 10.0.0.2:4", (Host("me@a.example", 4), Host("10.0.0.2", 4))),
    ],
)
def test_hosts_are_read_from_the_flag(request_for, text, hosts):
    assert hosts_of(request_for(flags={"hosts": text})) == hosts
    assert hosts[0].address in ("a", "a.example")


def test_hosts_are_read_from_a_file(request_for, tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\nh1 slots=2\nh2:2  # second\n\nh3\n")
    assert hosts_of(request_for(flags={"hostfile": str(file)})) == (Host("h1", 2), Host("h2", 2), Host("h3"))


def test_a_file_that_is_no_text_names_no_host(request_for, tmp_path):
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match="hosts` cannot be read: it is no text in UTF-8. Check the file"):
        hosts_of(request_for(flags={"hostfile": str(tmp_path / "hosts")}))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"hosts": "a,-oProxyCommand=x"}, "`-oProxyCommand=x` in `--hosts` is no host"),
        ({"hosts": "user@-oProxyCommand"}, "`user@-oProxyCommand` in `--hosts` is no host"),
        ({"hosts": "a b"}, "`a b` in `--hosts` is no host"),
        ({"hosts": "a:0"}, "is no host"),
        ({"hosts": "a,a:2"}, "`a` is named twice"),
        ({"hosts": "a", "hostfile": "x"}, "both name the machines"),
        ({"hostfile": "missing"}, "The hostfile `missing` cannot be read: No such file"),
    ],
)
def test_what_names_no_host_is_refused(request_for, flags, message):
    with pytest.raises(ConfigError, match=message):
        hosts_of(request_for(flags=flags))


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        ({"hosts": "a,b"}, None),
        ({"hosts": "a,b", "use_cpu": "true"}, 1),
        ({"hosts": "a,b", "gpu_ids": "0,1,5"}, 3),
        ({"hosts": "a,b", "gpu_ids": "all"}, None),
        ({"hosts": "a,b", "use_cpu": "true", "num_machines": "2"}, 1),
        ({"hosts": "a,b", "num_machines": "2", "num_processes": "8"}, 4),
        ({"hosts": "a:3,b:3"}, 3),
        ({"hosts": "a:3,b"}, 3),
        ({"hosts": "a,b", "num_processes": "8"}, 4),
    ],
)
def test_each_host_runs_equally_many_processes(request_for, flags, number):
    request = request_for(flags=flags)
    assert num_ranks_on_each(request, hosts_of(request)) == number


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"hosts": "a,b,c", "num_machines": "2"}, "`--num_machines` is 2, but 3 hosts are named"),
        ({"hosts": "a:1,b:2"}, r"the same number of processes, but theirs are \[1, 2\]"),
        ({"hosts": "a,b", "num_processes": "3"}, "`--num_processes` is 3, .* there are 2 hosts"),
        ({"hosts": "a:2,b:2", "num_processes": "6"}, "2 hosts with 2 each"),
        ({"hosts": "a:999999999"}, "999999999 processes .* at most 131072"),
    ],
)
def test_processes_that_cannot_be_shared_are_refused(request_for, flags, message):
    request = request_for(flags=flags)
    with pytest.raises(ConfigError, match=message):
        num_ranks_on_each(request, hosts_of(request))


@pytest.mark.parametrize(
    ("config", "flags", "number"),
    [
        ({"num_processes": 8}, {}, 8),  # as `accel config default` writes it on one of the machines
        ({"num_processes": 8, "num_machines": 1}, {}, 8),
        ({"num_processes": 6, "num_machines": 3}, {}, 2),
        ({"num_processes": 8}, {"num_processes": "6"}, 2),
    ],
)
def test_the_number_in_a_file_for_one_machine_is_that_of_each_host(request_for, config, flags, number):
    request = request_for(flags={"hosts": "a,b,c", **flags}, config=config)
    assert num_ranks_on_each(request, hosts_of(request)) == number


def test_neither_the_accelerators_here_nor_the_machines_of_the_file_count(request_for):
    request = request_for(flags={"hosts": "a,b"}, config={"num_machines": 2}, gpus=("0", "1", "2"))
    assert num_ranks_on_each(request, hosts_of(request)) is None
