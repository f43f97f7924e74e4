from __future__ import annotations

from accel.utils import launch_constants as constants
from accel_launch.options import OPTIONS


def test_constants_specify_what_the_flags_accept():
    by_name = {setting.name: setting for setting in OPTIONS}
    for word in constants.DEEPSPEED_MULTINODE_LAUNCHERS:
        assert by_name["deepspeed_multinode_launcher"].parse(word) == word
    for word in constants.TORCH_DYNAMO_MODES:
        assert by_name["dynamo_mode"].parse(word) == word
    for word in constants.DYNAMO_BACKENDS:
        assert by_name["dynamo_backend"].parse(word) == word
    assert {"pdsh", "standard", "slurm"} <= set(constants.DEEPSPEED_MULTINODE_LAUNCHERS)
    assert "max-autotune" in constants.TORCH_DYNAMO_MODES
    assert "INDUCTOR" in constants.DYNAMO_BACKENDS
    assert "NO" not in constants.DYNAMO_BACKENDS


def test_arguments_of_torchrun_are_those_of_the_installed_one():
    from torch.distributed.run import get_args_parser

    destinations = {action.dest for action in get_args_parser()._actions}
    long_names = [name for name in constants.TORCH_LAUNCH_PARAMS if len(name) > 1]
    assert set(long_names) <= destinations | {"standalone", "run_path", "log_dir"}
