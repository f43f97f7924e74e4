"""Process groups: what is refused, what is adopted, and where ranks meet."""

import re
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from accel_state import process_group
from accel_state.errors import ConfigError, StateError
from accel_state.partial_state import PartialState
from accel_state.runtime import reset_runtime
from accel_state.topology import Topology
from tools.harness.scripts import run_script, start_ranks


def finish(pair, *, timeout_s=120):
    """Return what each rank wrote to standard error, and its exit code."""
    exit_codes = [rank.process.wait(timeout_s) for rank in pair]
    return [(rank.stderr, exit_code) for rank, exit_code in zip(pair, exit_codes, strict=True)]


LISTENERS = """
import psutil
import torch.distributed as dist
from accel_state.partial_state import PartialState
state = PartialState(cpu=True)
dist.barrier()
opened = psutil.Process().net_connections(kind="tcp")
print(sorted({connection.laddr.ip for connection in opened if connection.status == "LISTEN"}))
"""


def test_ranks_that_meet_at_the_loopback_listen_to_no_other_machine():
    with start_ranks(["-c", LISTENERS], 3) as ranks:
        for (stderr, exit_code), rank in zip(finish(ranks), ranks, strict=True):
            assert exit_code == 0, stderr
            assert "'0.0.0.0'" not in rank.stdout
            assert "'::'" not in rank.stdout


MEETS_AGAIN = """
import os, pathlib, sys, time
import psutil
import torch
import torch.distributed as dist
from accel_state import PartialState

left, port = pathlib.Path(sys.argv[1]), int(os.environ["MASTER_PORT"])

def all_wait_in_the_next(state):
    opened = psutil.Process().net_connections(kind="tcp")
    num_connected = sum(one.laddr.port == port and one.status == "ESTABLISHED" for one in opened)
    return num_connected >= state.num_processes and len(list(left.iterdir())) == state.num_processes - 1

for is_last in (False, True):
    state = PartialState(cpu=True)
    ranks = torch.tensor([state.process_index])
    dist.all_reduce(ranks)
    while state.is_main_process and not is_last and not all_wait_in_the_next(state):
        time.sleep(0.01)
    rank = state.process_index
    state.destroy_process_group()
    PartialState._reset_state()
    if rank > 0:
        (left / str(rank)).touch()
print(int(ranks))
"""


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_that_are_in_the_next_group_before_rank_0_has_left_this_one_meet_there(tmp_path, num_ranks):
    with start_ranks(["-c", MEETS_AGAIN, tmp_path], num_ranks) as ranks:
        for (stderr, exit_code), rank in zip(finish(ranks), ranks, strict=True):
            assert exit_code == 0, stderr
            assert int(rank.stdout) == sum(range(num_ranks))


WAITS_LONG = """
import os, time
from accel_state import process_group
from accel_state.partial_state import PartialState
process_group.FIRST_NOTICE_S = 0.5
if os.environ["RANK"] == "1":
    while not os.path.exists(os.environ["REPORTED"]):
        time.sleep(0.05)
PartialState(cpu=True).wait_for_everyone()
"""


def test_a_rank_that_waits_at_the_start_names_the_ranks_it_waits_for(tmp_path, monkeypatch):
    reported = tmp_path / "reported"
    monkeypatch.setenv("REPORTED", str(reported))
    with start_ranks(["-c", WAITS_LONG], 2) as ranks:
        while "Rank 0 has waited for the other of 2 ranks" not in ranks[0].stderr:
            assert ranks[0].process.poll() is None, ranks[0].stderr
            time.sleep(0.05)
        reported.touch()
        ended = finish(ranks)
    assert [exit_code for _, exit_code in ended] == [0, 0]
    assert "answers, so ranks are missing" in ended[0][0]


NOBODY_LISTENS = """
import datetime
from accel_state import process_group
from accel_state.partial_state import PartialState
process_group.FIRST_NOTICE_S = 0.5
PartialState(cpu=True, timeout=datetime.timedelta(seconds=3))
"""


def test_a_rank_reports_that_no_process_listens_at_the_rendezvous():
    with start_ranks(["-c", NOBODY_LISTENS], 2) as ranks:
        ranks[0].process.kill()
        (_, (errors, exit_code)) = finish(ranks)
    assert exit_code == 1
    assert re.search(
        r"Rank 1 has waited for rank 0 for 0 s; `.*:\d+` cannot be reached: Connection refused", errors
    )


FEW_FILES = """
import resource, sys, warnings
from accel_state import PartialState

warnings.showwarning = lambda message, *_: print(message)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
state = PartialState(cpu=True)
print(state.process_index, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_of_open_files_is_raised_for_the_connections_of_all_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FEW_FILES)
    lines = run_script(script, "500", num_processes=3).stdout.splitlines()
    assert sorted(lines) == ["0 265 500", "1 265 500", "2 265 500"]


def test_a_hard_limit_that_is_too_low_for_all_ranks_is_reported_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FEW_FILES)
    lines = run_script(script, "200", num_processes=2).stdout.splitlines()
    message = (
        "This process may have 200 files open, but rank 0 of 2 ranks needs about 262, a connection being a file. "
        "Raise the hard limit of the job (`ulimit -Hn`; `LimitNOFILE` of a service)."
    )
    assert sorted(lines) == ["0 200 200", "1 200 200", message]


SEVERAL_BACKENDS = """
import torch.distributed as dist
from accel_state import PartialState
from accel_state.process_group import backend_of_group
from accel_state.runtime import reset_runtime

def over_gloo(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

dist.Backend.register_backend("cards", over_gloo, devices=["cuda"])
dist.init_process_group("cpu:gloo,cuda:cards")
for asked in ({}, {"backend": "gloo"}, {"backend": "cuda:cards,cpu:gloo"}):
    reset_runtime(keep_process_group=True)
    print(PartialState(cpu=True, **asked).backend, PartialState(**asked).backend)
print("Backend: gloo\\n" in str(PartialState()), backend_of_group("cuda"), backend_of_group("xpu"))
"""


def test_group_of_several_backends_shows_the_one_of_the_device_and_may_be_requested_by_all(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SEVERAL_BACKENDS)
    lines = run_script(script, num_processes=2).stdout.splitlines()
    assert sorted(lines) == sorted(2 * [*3 * ["gloo gloo"], "True cards cpu:gloo,cuda:cards"])


def set_up_by_pair(path):
    dist.destroy_process_group()
    reset_runtime(keep_process_group=True)
    asked = {"backend": "cpu:gloo", "init_method": f"file://{path}"}
    backends = [PartialState(cpu=True, **asked).backend, PartialState(cpu=True, **asked).backend]
    with pytest.raises(StateError, match="`backend` requests `cpu:mpi`, but .* set up with `gloo`"):
        PartialState(backend="cpu:mpi")
    return backends, dist.get_backend_config()


def test_group_is_set_up_on_a_backend_for_a_type_of_device(world, tmp_path):
    assert world(2).run(set_up_by_pair, tmp_path / "meet") == 2 * [(["gloo", "gloo"], "cpu:gloo")]


def test_backend_that_is_not_built_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match="`no_such` is not part of this torch. Available: .*gloo"):
        process_group.check_backend("no_such")
    process_group.check_backend("cpu:gloo")
    process_group.check_backend("GLOO")


def test_missing_init_method_is_named(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(
        ConfigError, match="2 processes were requested, but their rendezvous is unknown. Set `MASTER_ADDR`"
    ):
        process_group.set_up_group(Topology(world_size=2), backend="gloo", options={})


def test_file_of_the_debug_launcher_is_where_ranks_meet(monkeypatch, tmp_path):
    monkeypatch.setenv("MASTER_ADDR", "host")
    monkeypatch.setenv("ACCELERATE_DEBUG_RDV_FILE", str(tmp_path / "meet"))
    group = process_group._meet(Topology(world_size=2), claim="", timeout=timedelta(seconds=1))
    assert group == {"init_method": f"file://{tmp_path / 'meet'}"}


def test_unknown_argument_of_the_group_is_named():
    with pytest.raises(
        ConfigError, match="`time_out` is not an argument of the process group. Known: backend,.*timeout"
    ):
        process_group.check_options({"time_out": 3})


def adopt_without_environment():
    topology, backend = process_group.adopt_group(Topology(), device_type="cpu", options={})
    return topology.rank, topology.local_rank, topology.local_world_size, topology.source, backend


def test_place_in_a_group_without_environment_is_one_machine(world):
    places = world(2).run(adopt_without_environment)
    assert places == [(rank, rank, 2, "process_group", "gloo") for rank in range(2)]
