"""XLA devices must train as the CPU does: one device, two that one process drives (SPMD), and sharded over them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import xla_rows

from tools.harness.scripts import run_script

pytestmark = pytest.mark.engine("xla")
TWO_DEVICES = {"CPU_NUM_DEVICES": "2"}


def run_case(case, folder, **environ):
    """Run a case of `xla_rows` in a separate process, and return what it saved."""
    done = run_script(
        xla_rows.__file__, case, str(folder), cwd=folder, env=environ, timeout_s=300, preload=("torch_xla",)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(Path(folder) / f"{case}.pt")


def assert_trained_alike(found, expected, *, atol=1e-6):
    # Sums differ by the order in which a processor adds: a loss of 4 has rounding steps of 5e-7.
    assert found["losses"] == pytest.approx(expected["losses"], rel=atol, abs=atol)
    assert found["norms"] == pytest.approx(expected["norms"], abs=atol)
    assert list(found["state"]) == list(expected["state"])
    # AdamW divides by the roots of tiny squares, which makes more of a rounding.
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=10 * atol)


def assert_followed(found):
    """The optimizer made before steps the parameters on the device, ties are kept, and nothing is wrapped."""
    assert found["strategy"] == "xla"
    assert found["is_tied"]
    assert found["is_same_model"]
    assert found["steps_the_model"]
    assert not found["skipped"]
    _, second, third = found["compiled"]
    assert second == third, "programs are compiled again in the third epoch"


def test_one_device_trains_as_plain_pytorch(tmp_path):
    found = run_case("single", tmp_path)
    assert_trained_alike(found, xla_rows.plain())
    assert_followed(found)


def test_two_devices_of_one_process_train_as_one(tmp_path):
    found = run_case("spmd", tmp_path, **TWO_DEVICES)
    assert_trained_alike(found, xla_rows.plain())
    assert_followed(found)
    assert any("devices=[2,1]" in spec for spec in found["batches"])


@pytest.mark.parametrize("case", ["fsdp", "fsdp_ckpt"])
def test_parameters_and_states_over_two_devices_train_as_on_one(tmp_path, case):
    found = run_case(case, tmp_path, **TWO_DEVICES)
    assert_trained_alike(found, xla_rows.plain())
    assert_followed(found)
    assert all("devices=[" in spec for spec in found["parameters"].values())
    assert all("devices=[" in spec for spec in found["states"])


@pytest.mark.parametrize(("kind", "environ"), [("single", {}), ("fsdp", TWO_DEVICES)])
def test_a_resumed_run_continues_bit_for_bit(tmp_path, kind, environ):
    whole = run_case(f"{kind}_whole", tmp_path, **environ)
    resumed = run_case(f"{kind}_resumed", tmp_path, **environ)
    assert resumed["losses"] == whole["losses"][-len(resumed["losses"]) :]
    torch.testing.assert_close(resumed["state"], whole["state"], rtol=0, atol=0)
    assert resumed["parameters"] == whole["parameters"]


def test_bf16_computes_in_it_and_stores_fp32(tmp_path):
    found = run_case("bf16", tmp_path)
    assert found["dtypes"] == {torch.bfloat16}
    assert {value.dtype for value in found["state"].values()} == {torch.float32}
    assert any((value != value.bfloat16().float()).any() for value in found["state"].values())
    assert found["losses"] == pytest.approx(xla_rows.plain()["losses"], abs=0.05)


def test_downcast_bf16_stores_what_it_computes_in(tmp_path):
    found = run_case("bf16", tmp_path, ACCELERATE_DOWNCAST_BF16="true")
    for value in found["state"].values():
        torch.testing.assert_close(value, value.bfloat16().float(), rtol=0, atol=0)


def test_operations_take_tensors_of_the_device(tmp_path):
    found = run_case("operations", tmp_path)
    assert found["gathered"] == found["reduced"] == found["padded"] == [0, 1, 2]
    assert found["device"] == "xla"
    torch.testing.assert_close(found["gradients"], found["expected"], rtol=0, atol=1e-6)
    assert len(found["saved"]) == len(found["state"])
    torch.testing.assert_close(found["saved"], found["state"], rtol=0, atol=0)


def test_what_would_silently_be_something_else_is_refused(tmp_path):
    fp16, stored, late = run_case("refusals", tmp_path, XLA_USE_BF16="1")
    assert "`mixed_precision=fp16` is not supported on this `xla` device" in fp16
    assert "`XLA_USE_BF16` makes this process store fp32 as bf16" in stored
    assert "`xla_fsdp_v2` comes too late" in late
