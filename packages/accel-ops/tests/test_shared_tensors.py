from __future__ import annotations

import torch

from accel_ops.shared_tensors import (
    aliases,
    clean_state_dict_for_safetensors,
    id_tensor_storage,
    independent_tensors,
)


def test_tensors_on_one_storage_have_one_id():
    base = torch.zeros(4)
    assert (
        id_tensor_storage(base) == id_tensor_storage(base[2:]) == (torch.device("cpu"), base.data_ptr(), 16)
    )
    assert id_tensor_storage(base) != id_tensor_storage(torch.zeros(4))
    one, two = torch.zeros(4, device="meta"), torch.zeros(4, device="meta")
    assert id_tensor_storage(one) == id_tensor_storage(one.view(2, 2)) != id_tensor_storage(two)


def test_only_the_very_same_window_is_an_alias():
    base = torch.arange(4.0)
    state = {
        "a": base, "part": base[:2], "reshaped": base.view(2, 2), "bits": base.view(torch.int32),
        "a2": base.detach(),
        "empty": torch.zeros(0), "other_empty": torch.zeros(0),
    }  # fmt: skip
    assert aliases(state) == {"a2": "a"}


def test_cleaning_keeps_first_names_and_what_safetensors_accepts():
    base = torch.arange(6.0).reshape(2, 3)
    state = {"b": base, "a": base, "t": base.t(), "row": base[0]}
    clean = clean_state_dict_for_safetensors(state)
    assert list(clean) == ["b", "t", "row"]
    assert all(torch.equal(clean[name], state[name]) for name in clean)
    assert all(tensor.is_contiguous() for tensor in clean.values())
    assert len({id_tensor_storage(tensor) for tensor in clean.values()}) == len(clean)
    assert list(state) == ["b", "a", "t", "row"]


def test_what_is_contiguous_is_not_copied():
    alone = torch.zeros(3)
    assert independent_tensors({"x": alone})["x"].data_ptr() == alone.data_ptr()
