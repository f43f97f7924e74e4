"""Which decorated tests run, and the reasons for which others do not."""

import unittest

import pytest
import torch

from accel.test_utils import requirements
from accel.test_utils.requirements import requirement

NEED_A_DEVICE = (
    "require_cuda",
    "require_single_gpu",
    "require_multi_gpu",
    "require_cuda_or_hpu",
    "require_cuda_or_xpu",
    "require_mlu",
    "require_multi_device",
    "require_multi_gpu_or_xpu",
    "require_multi_xpu",
    "require_musa",
    "require_neuron",
    "require_non_cpu",
    "require_npu",
    "require_sdaa",
    "require_single_device",
    "require_single_xpu",
    "require_tpu",
    "require_xpu",
    "require_transformer_engine_mxfp8",
)


def reason_to_skip(decorator) -> str | None:
    """Run a decorated test; return why it was skipped, None if it ran."""
    ran = []

    class Tests(unittest.TestCase):
        @decorator
        def test_of_a_feature(self):
            ran.append(True)

    result = unittest.TestResult()
    Tests("test_of_a_feature").run(result)
    assert result.wasSuccessful()
    assert bool(ran) is not bool(result.skipped)
    return result.skipped[0][1] if result.skipped else None


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without an accelerator")
def test_what_needs_a_device_is_skipped_without_one():
    for name in NEED_A_DEVICE:
        assert (reason_to_skip(getattr(requirements, name)) or "").startswith("test requires "), name
    for name in ("require_cpu", "require_non_xpu", "require_non_hpu", "require_fsdp2"):
        assert reason_to_skip(getattr(requirements, name)) is None, name


def test_a_package_is_required_by_its_name():
    assert reason_to_skip(requirement(lambda: False, "`nothing`")) == "test requires `nothing`"
    assert (
        reason_to_skip(requirements.require_torch_min_version(version="99"))
        == "test requires torch 99 or newer"
    )
    assert reason_to_skip(requirements.require_torch_min_version(version="2.0")) is None
    assert reason_to_skip(requirements.skip) == "test was skipped"


def test_classes_are_skipped_in_full():
    @requirement(lambda: False, "`nothing`")
    class Tests(unittest.TestCase):
        def test_nothing(self):
            raise AssertionError("this should not run")

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert (len(result.skipped), result.wasSuccessful()) == (1, True)


def test_slow_tests_run_when_they_are_requested(monkeypatch):
    monkeypatch.delenv("RUN_SLOW", raising=False)
    assert reason_to_skip(requirements.slow) == "test is slow"
    monkeypatch.setenv("RUN_SLOW", "yes")
    assert reason_to_skip(requirements.slow) is None


def test_the_order_is_that_of_the_plugin():
    """It is not installed here, and pytest refuses marks that it does not know."""
    with pytest.raises(pytest.fail.Exception, match="'order' not found"):
        requirements.run_first(lambda: None)
