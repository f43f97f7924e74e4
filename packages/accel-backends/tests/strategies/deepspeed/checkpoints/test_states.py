import torch

from accel_backends.strategies.deepspeed.checkpoints.states import SavedTensor, part_of


def test_only_the_values_that_are_requested_are_read_from_the_fragments():
    fragments = [torch.arange(3.0), torch.arange(3.0, 8.0)]
    tensor = SavedTensor.of((2, 4), fragments)
    assert part_of(tensor, 1, 5).tolist() == [1, 2, 3, 4, 5]
    assert part_of(tensor, 4, 2).data_ptr() == fragments[1][1:].data_ptr()  # no copy
    assert tensor.num_fetched == 0
    assert tensor.fetch().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_plain_tensor_is_sharded_in_the_order_of_its_rows():
    assert part_of(torch.arange(6.0).reshape(2, 3), 2, 3).tolist() == [2, 3, 4]
