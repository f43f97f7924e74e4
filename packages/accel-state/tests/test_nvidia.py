from __future__ import annotations

import stat

import pytest

from accel_state.errors import NotAvailableError
from accel_state.nvidia import check_cuda_p2p_ib_support, get_driver_version, get_gpu_info


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Return a function that puts a stand-in for the driver's program on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(names: list[str], driver: str, *, code: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        listed = {"name": names, "driver_version": [driver] * len(names)}
        cases = "".join(
            f"*={field}) printf '{''.join(f'{line}{chr(92)}n' for line in lines)}';;"
            for field, lines in listed.items()
        )
        program.write_text(f'#!/bin/sh\ncase "$1" in {cases} esac\nexit {code}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    return put


def test_names_and_number_of_gpus(smi):
    smi(["NVIDIA H200", "NVIDIA H200"], "570.1")
    assert get_gpu_info() == (["NVIDIA H200", "NVIDIA H200"], 2)
    assert get_driver_version() == "570.1"


@pytest.mark.parametrize(
    ("names", "driver", "expected"),
    [
        (["NVIDIA GeForce RTX 4090"] * 2, "535.86.05", False),
        (["NVIDIA GeForce RTX 4090"] * 2, "550.40.07", True),
        (["NVIDIA GeForce RTX 4090"], "535.86.05", True),
        (["NVIDIA H200"] * 8, "535.86.05", True),
        (["NVIDIA H200", "NVIDIA GeForce RTX 4080"], "550.40.06", False),
    ],
)
def test_consumer_gpus_need_the_newer_driver_to_exchange_data(smi, names, driver, expected):
    smi(names, driver)
    assert check_cuda_p2p_ib_support() is expected


def test_without_the_driver_nothing_is_restricted_and_questions_are_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_cuda_p2p_ib_support() is True
    with pytest.raises(NotAvailableError, match="`nvidia-smi` is not on the PATH"):
        get_gpu_info()


def test_a_driver_that_fails_is_an_error(smi):
    smi(["NVIDIA H200"], "570.1", code=9)
    with pytest.raises(NotAvailableError, match="`nvidia-smi` does not answer.*exit status 9"):
        get_gpu_info()


def test_no_gpu_has_no_driver_version(smi):
    smi([], "570.1")
    assert get_gpu_info() == ([], 0)
    with pytest.raises(NotAvailableError, match="lists no GPU"):
        get_driver_version()
