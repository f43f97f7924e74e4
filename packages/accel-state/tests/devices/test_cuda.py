from __future__ import annotations

import stat
import warnings

import pytest

from accel_state.devices import device_backend
from accel_state.environment import variable


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Return a function that pretends to two GPUs of a name under a driver."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"):
        monkeypatch.setenv(name, "")  # so that it is unset again after the test
        monkeypatch.delenv(name)

    def pretend(name: str, driver: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f"#!/bin/sh\ncase \"$1\" in *=name) printf '{name}\\n{name}\\n';; *) printf '{driver}\\n';; esac\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda number: name)

    return pretend


def test_gpus_that_would_hang_in_peer_to_peer_access_do_without(two_gpus):
    two_gpus("NVIDIA GeForce RTX 4090", "535.86.05")
    with pytest.warns(UserWarning, match="RTX 40 series hang .* NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1"):
        assert device_backend("cuda").process_group_options() == {}
    assert (variable("NCCL_P2P_DISABLE"), variable("NCCL_IB_DISABLE")) == ("1", "1")


def test_what_the_user_sets_for_peer_to_peer_access_counts(two_gpus, monkeypatch):
    two_gpus("NVIDIA GeForce RTX 4090", "535.86.05")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    with pytest.warns(UserWarning, match="disabled: NCCL_IB_DISABLE=1. A"):
        device_backend("cuda").process_group_options()
    assert (variable("NCCL_P2P_DISABLE"), variable("NCCL_IB_DISABLE")) == ("0", "1")


@pytest.mark.parametrize(
    ("name", "driver"), [("NVIDIA GeForce RTX 4090", "550.40.07"), ("NVIDIA H100 80GB HBM3", "535.86.05")]
)
def test_other_gpus_keep_peer_to_peer_access(two_gpus, name, driver):
    two_gpus(name, driver)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device_backend("cuda").process_group_options()
    assert variable("NCCL_P2P_DISABLE") is None
