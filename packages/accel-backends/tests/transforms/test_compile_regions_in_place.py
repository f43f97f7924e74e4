import torch

from accel_backends import compile_regions_deepspeed


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))


def test_each_block_and_what_lies_next_to_them_is_compiled_in_place():
    model = Model()
    before = list(model.modules())
    compile_regions_deepspeed(model, backend="eager")
    assert list(model.modules()) == before
    compiled = [module for module in model.modules() if module._compiled_call_impl is not None]
    assert compiled == [model.first, *model.blocks]


def test_a_model_without_blocks_is_compiled_whole():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compile_regions_deepspeed(model, backend="eager")
    assert [module for module in model.modules() if module._compiled_call_impl is not None] == [model]
