from __future__ import annotations

import hashlib
import io
import random
import warnings

import numpy as np
import pytest
import torch

from accel_ops import capture_rng_states, restore_rng_states, set_seed
from accel_state import PartialState
from accel_state.errors import CheckpointError, StateError
from tools.harness.vendor_modules import vendor_module


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.randn()), torch.randn(1).item()]


def test_numbers_continue_where_they_were_captured():
    set_seed(5)
    draw()  # leaves half a pair of gaussians behind in Python and NumPy
    states = capture_rng_states()
    wanted = [draw(), draw()]
    draw()
    restore_rng_states(states)
    assert [draw(), draw()] == wanted


def test_states_are_plain_and_load_without_pickled_code():
    file = io.BytesIO()
    torch.save(capture_rng_states(), file)
    wanted = draw()
    file.seek(0)
    restore_rng_states(torch.load(file, weights_only=True))
    assert draw() == wanted


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_a_missing_state_is_an_error_and_changes_nothing(name):
    states = capture_rng_states()
    del states[name]
    draw()
    before = capture_rng_states()
    with pytest.raises(CheckpointError, match=f"The random state of `{name}` is missing"):
        restore_rng_states(states)
    assert str(capture_rng_states()) == str(before)
    restore_rng_states(states, strict=False)


def test_states_of_another_kind_of_device_are_restored_but_for_those_of_the_device():
    states = {**capture_rng_states(), "cuda": {"state": torch.zeros(16, dtype=torch.uint8)}}
    wanted = draw()
    with pytest.warns(UserWarning, match="captured on `cuda` and are restored on `cpu`"):
        restore_rng_states(states)
    assert draw() == wanted


def test_a_device_without_a_state_is_seeded_from_the_state_of_the_cpu(fresh_state):
    states = capture_rng_states()
    wanted = draw()
    digest = hashlib.sha256(states["torch"]["state"].numpy().tobytes()).digest()
    with vendor_module("xpu") as module:
        PartialState()
        with pytest.warns(UserWarning, match="captured on `cpu` and are restored on `xpu`"):
            restore_rng_states(states)
        assert draw() == wanted
        assert module.initial_seed() == int.from_bytes(digest[:4], "little")
        with warnings.catch_warnings(action="error"):
            restore_rng_states(capture_rng_states())


def test_states_are_captured_and_restored_whatever_the_default_device_is():
    with torch.device("meta"):
        states = capture_rng_states()
        restore_rng_states(states)
    assert states["python"]["state"].device.type == "cpu"


def test_a_foreign_numpy_generator_is_refused():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(StateError, match="`PCG64`; only NumPy's default, `MT19937`"):
            capture_rng_states()
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("torch", {"state": torch.zeros(3, dtype=torch.uint8)}),
        ("torch", None),
        ("python", {"version": 3, "state": [1, 2], "gauss_next": None}),
        ("python", {"version": 3, "state": torch.full((625,), 2**40), "gauss_next": None}),
        ("numpy", {"key": torch.zeros(1), "pos": 0, "has_gauss": 0, "gauss": 0.0}),
        ("numpy", {"key": [1], "pos": 0, "has_gauss": 0, "gauss": 0.0}),
    ],
)
def test_a_damaged_state_is_an_error_and_changes_nothing(name, state):
    states = capture_rng_states()
    draw()
    before = capture_rng_states()
    with pytest.raises(CheckpointError, match=f"The random state of `{name}` cannot be restored"):
        restore_rng_states({**states, name: state})
    assert str(capture_rng_states()) == str(before)
