from __future__ import annotations

import pytest
import torch

from accel_ops import (
    TensorInformation,
    find_batch_size,
    find_device,
    get_data_structure,
    get_shape,
    ignorant_find_batch_size,
    initialize_tensors,
    is_tensor_information,
    is_torch_xpu_tensor,
    listify,
)


@pytest.mark.parametrize(
    "data",
    [torch.ones(3, 2), [torch.ones(3)], {"a": "text", "b": (torch.tensor(1.0), torch.ones(3, 1))}],
    ids=["tensor", "list", "mixed"],
)
def test_the_batch_size_is_that_of_the_first_tensor_with_rows(data):
    assert find_batch_size(data) == ignorant_find_batch_size(data) == 3


def test_data_without_a_batch_size_is_refused_or_answered_with_none():
    with pytest.raises(ValueError, match="Cannot find the batch size from empty <class 'list'>"):
        find_batch_size([])
    for data in ("text", [torch.tensor(1)], {"a": 1}):
        with pytest.raises(TypeError, match="Can only find the batch size of tensors"):
            find_batch_size(data)
        assert ignorant_find_batch_size(data) is None
    assert ignorant_find_batch_size({}) is None


def test_the_device_is_that_of_the_first_tensor():
    assert find_device(["text", {"a": torch.ones(1, device="meta")}]) == torch.device("meta")
    assert find_device([1, "text"]) is None
    assert not is_torch_xpu_tensor(torch.ones(1))


def test_structures_describe_tensors_and_make_empty_ones_like_them():
    data = {"a": [torch.ones(2, 3, dtype=torch.float16)], "b": torch.tensor(True)}
    described = get_data_structure(data)
    assert described == {
        "a": [TensorInformation(torch.Size([2, 3]), torch.float16)],
        "b": TensorInformation(torch.Size([]), torch.bool),
    }
    assert is_tensor_information(described["b"])
    assert not is_tensor_information(data["b"])
    made = initialize_tensors(described)
    assert get_data_structure(made) == described
    assert get_shape(made) == {"a": [[2, 3]], "b": []}


def test_listify_gives_python_numbers():
    assert listify({"a": torch.tensor([1, 2]), "b": [torch.tensor(0.5, dtype=torch.bfloat16)], "c": "x"}) == {
        "a": [1, 2],
        "b": [0.5],
        "c": "x",
    }
