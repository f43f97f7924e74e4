import torch

from accel_backends import GatheredParameters


def test_parameters_without_shards_are_unsharded_already():
    model = torch.nn.Linear(2, 2)
    with GatheredParameters(model.parameters(), modifier_rank=0), GatheredParameters(model.weight):
        model.weight.data.fill_(1.0)
    assert model.weight.eq(1.0).all()
    with GatheredParameters([], enabled=False):
        pass
