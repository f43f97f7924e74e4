from __future__ import annotations

import inspect

from torch.nn.parallel import DistributedDataParallel

from accel_backends import DistributedDataParallelKwargs


def test_to_kwargs_gives_what_differs_and_nothing_about_hooks():
    handler = DistributedDataParallelKwargs(find_unused_parameters=True, comm_hook="fp16")
    assert handler.to_kwargs() == {"find_unused_parameters": True}
    assert DistributedDataParallelKwargs().to_kwargs() == {}


def test_to_dict_names_arguments_of_ddp():
    arguments = DistributedDataParallelKwargs().to_dict()
    assert set(arguments) <= set(inspect.signature(DistributedDataParallel).parameters)
    assert len(arguments) == 7


def test_to_dict_can_show_the_hook_too():
    shown = DistributedDataParallelKwargs(comm_hook="fp16").to_dict(ignore_keys=())
    assert shown["comm_hook"] == "fp16"


def test_defaults_are_those_of_ddp():
    signature = inspect.signature(DistributedDataParallel).parameters
    ours = DistributedDataParallelKwargs().to_dict()
    same = ("dim", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph")
    assert {name: ours[name] for name in same} == {name: signature[name].default for name in same}
