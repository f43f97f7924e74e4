"""Building the state: devices, places, and requests that cannot be met."""

import platform

import pytest
import torch

from accel_state.devices import device_backend
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.partial_state import PartialState
from accel_state.runtime import current_runtime
from tools.harness.scripts import run_script

pytestmark = pytest.mark.usefixtures("fresh_state")

TWO = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def two_ranks(monkeypatch):
    for key, value in TWO.items():
        monkeypatch.setenv(key, value)


@pytest.fixture
def cuda_devices(monkeypatch):
    """Pretend to a number of CUDA devices."""
    current = []

    def of_count(num):
        for name in ("mlu", "sdaa", "musa", "npu", "hpu", "neuron", "xla"):
            monkeypatch.setattr(device_backend(name), "unavailable_reason", lambda: "It is switched off.")
        cuda = device_backend("cuda")
        monkeypatch.setattr(cuda, "unavailable_reason", lambda: None if num > 0 else "There is none.")
        monkeypatch.setattr(cuda, "count", lambda: num)
        monkeypatch.setattr(cuda, "set_device", current.append)
        return current

    return of_count


def test_more_processes_than_devices_are_refused(cuda_devices, monkeypatch):
    for key, value in {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(key, value)
    cuda_devices(2)
    with pytest.raises(
        ConfigError, match="3 processes run on this machine, but each of them sees 2 .*Start at most 2"
    ):
        PartialState()
    assert not PartialState.is_initialized()


def test_cpu_requested_wins_over_devices(cuda_devices):
    assert cuda_devices(1) == []
    assert PartialState(cpu=True).device == torch.device("cpu")


def test_backend_that_is_not_built_is_refused(two_ranks):
    with pytest.raises(ConfigError, match="backend `mpi` is not part of this torch"):
        PartialState(cpu=True, backend="mpi")


def test_several_processes_on_a_device_without_collectives_are_refused(two_ranks, monkeypatch):
    monkeypatch.setattr(device_backend("mps"), "unavailable_reason", lambda: None)
    monkeypatch.setattr(device_backend("mps"), "count", lambda: 1)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "mps")
    with pytest.raises(ConfigError, match="processes on `mps` cannot communicate"):
        PartialState()


def test_device_named_by_the_environment_is_used_and_made_current(cuda_devices, monkeypatch):
    current = cuda_devices(4)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:3")
    assert PartialState().device == torch.device("cuda", 3)
    assert current == [torch.device("cuda", 3)]


def test_device_type_named_by_the_environment_gives_each_process_its_own(cuda_devices, monkeypatch):
    cuda_devices(4)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert PartialState().device == torch.device("cpu")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("cudo", ConfigError, "is `cudo`, which torch does not know"),
        ("mps", NotAvailableError, "The device `mps` was requested, but none is available"),
    ],
)
def test_device_that_is_not_there_is_refused(cuda_devices, monkeypatch, value, error, message):
    cuda_devices(4)
    monkeypatch.setattr(device_backend("mps"), "unavailable_reason", lambda: "It is switched off.")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", value)
    with pytest.raises(error, match=message):
        PartialState()


def test_a_device_with_a_number_is_taken_as_specified_and_refused_by_its_driver(cuda_devices, monkeypatch):
    current = cuda_devices(0)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:64")
    assert str(PartialState().device) == "cuda:64"
    assert current == [torch.device("cuda", 64)]


def test_a_device_that_its_driver_refuses_is_named(monkeypatch):
    def refuse(device):
        raise RuntimeError("invalid device ordinal")

    monkeypatch.setattr(device_backend("cuda"), "set_device", refuse)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:64")
    with pytest.raises(
        NotAvailableError, match="The device `cuda:64` cannot be used here: invalid device ord"
    ):
        PartialState()


def test_one_device_for_two_processes_is_refused(two_ranks, cuda_devices, monkeypatch):
    cuda_devices(4)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:1")
    with pytest.raises(
        ConfigError, match="names the one device `cuda:1` for 2 processes. Leave the number out"
    ):
        PartialState()


def test_rank_without_world_size_is_refused():
    with pytest.raises(ConfigError, match="`rank` and `world_size` belong together"):
        PartialState(rank=0)


def test_rank_and_world_size_of_the_user_win_over_the_environment(two_ranks):
    state = PartialState(cpu=True, rank=0, world_size=1)
    assert (state.num_processes, state.backend) == (1, None)
    assert current_runtime().topology.source == "plain"


def test_failed_building_leaves_nothing(two_ranks):
    with pytest.raises(ConfigError, match="their rendezvous is unknown"):
        PartialState(cpu=True)
    assert not PartialState.is_initialized()


def test_several_processes_on_an_old_kernel_are_warned_of(two_ranks, monkeypatch, caplog):
    uname = platform.uname()._replace(system="Linux", release="4.18.0-553")
    monkeypatch.setattr(platform, "uname", lambda: uname)
    with pytest.raises(ConfigError, match="backend `mpi` is not part of this torch"):
        PartialState(cpu=True, backend="mpi")
    assert "The Linux kernel 4.18.0-553 is older than 5.5.0" in caplog.text


@pytest.mark.parametrize(("asked", "line"), [("true", "rich: x"), ("false", "ValueError: x")])
def test_tracebacks_are_richs_where_requested(tmp_path, asked, line):
    (tmp_path / "rich-99.0.dist-info").mkdir()
    (tmp_path / "rich-99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: rich\nVersion: 99.0\n"
    )
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("")
    (tmp_path / "rich" / "traceback.py").write_text(
        "import sys\n"
        "def install():\n"
        "    sys.excepthook = lambda kind, error, trace: sys.stderr.write(f'rich: {error}\\n')\n"
    )
    code = "from accel_state import PartialState\nPartialState(cpu=True)\nraise ValueError('x')\n"
    finished = run_script("-c", code, env={"ACCELERATE_ENABLE_RICH": asked, "PYTHONPATH": str(tmp_path)})
    assert finished.stderr.splitlines()[-1] == line, finished.stderr


@pytest.mark.usefixtures("nothing_installed")
def test_rich_that_is_requested_but_not_installed_is_warned_of(monkeypatch):
    monkeypatch.setenv("ACCELERATE_ENABLE_RICH", "true")
    with pytest.warns(UserWarning, match="`ACCELERATE_ENABLE_RICH` has no effect: `rich` is not installed"):
        PartialState(cpu=True)


def test_a_request_for_intels_extension_is_answered_once_and_changes_nothing(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_IPEX", "1")
    with pytest.warns(
        UserWarning, match="`ACCELERATE_USE_IPEX` has no effect any more.*`gloo`.*`xccl`"
    ) as said:
        state = PartialState(cpu=True)
    assert (len(said), state.device) == (1, torch.device("cpu"))
    assert PartialState().device == state.device
