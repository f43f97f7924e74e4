"""`AcceleratorState`: precision, plugins and mesh on top of the process's state."""

from typing import ClassVar

import pytest
import torch

from accel_state.accelerator_state import AcceleratorState, check_precision
from accel_state.enums import DistributedType
from accel_state.errors import ConfigError, StateError, UnknownNameError
from accel_state.parallelism_config import ParallelismConfig
from accel_state.partial_state import PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")


class FsdpPlugin:
    distributed_type = DistributedType.FSDP
    strategy = "fsdp2"


class DeepSpeedPlugin:
    distributed_type = DistributedType.DEEPSPEED

    def __init__(self):
        self.selected = False

    def select(self, _from_accelerator_state=False):
        self.selected = True

    def _unselect(self):
        self.selected = False


def test_precision_comes_from_the_argument_then_the_environment_then_is_none(monkeypatch):
    assert AcceleratorState(cpu=True).mixed_precision == "no"
    AcceleratorState._reset_state()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert AcceleratorState(cpu=True).mixed_precision == "fp16"
    AcceleratorState._reset_state()
    assert AcceleratorState("bf16").mixed_precision == "bf16"


def test_unknown_precision_is_refused_before_anything_is_built():
    with pytest.raises(UnknownNameError, match="Unknown precision `bf17`. Known: bf16,.*Did you mean `bf16`"):
        AcceleratorState(mixed_precision="bf17")
    assert not PartialState.is_initialized()
    assert check_precision("FP16") == "fp16"


def test_a_precision_of_another_package_can_be_requested_by_variable(monkeypatch, tmp_path):
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[accel.precisions]\nposit8 = third_party:Posit8\n")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "Posit8")
    with pytest.raises(
        ConfigError, match="`Posit8`, but it must be one of: no, fp16, bf16, fp8, or a name that an installed"
    ):
        AcceleratorState(cpu=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert AcceleratorState(cpu=True).mixed_precision == "posit8"


def test_second_precision_is_refused_and_the_same_is_not():
    state = AcceleratorState("bf16", cpu=True)
    assert AcceleratorState("bf16").mixed_precision == AcceleratorState().mixed_precision == "bf16"
    with pytest.raises(
        StateError, match="`mixed_precision` requests `fp16`, but the state was built with `bf16`"
    ):
        AcceleratorState("fp16")
    assert state.mixed_precision == "bf16"


def test_process_is_seen_through_it_too():
    state = AcceleratorState(cpu=True)
    assert (state.device, state.num_processes, state.process_index) == (torch.device("cpu"), 1, 0)
    assert state.is_main_process
    assert state.is_local_main_process
    assert state.is_last_process
    assert repr(state).endswith("Mixed precision type: no\n")
    with state.split_between_processes([1, 2]) as share:
        assert share == [1, 2]


def test_reset_forgets_training_and_on_demand_the_process():
    state = AcceleratorState("bf16", cpu=True)
    assert AcceleratorState._shared_state["_mixed_precision"] == "bf16"
    assert AcceleratorState._shared_state["device"] == torch.device("cpu")
    AcceleratorState._reset_state()
    assert not state.initialized
    assert not AcceleratorState.is_initialized()
    assert AcceleratorState._shared_state == {}
    assert PartialState.is_initialized()
    for name in (
        "mixed_precision",
        "distributed_type",
        "fsdp_plugin",
        "parallelism_config",
        "deepspeed_plugin",
    ):
        assert not hasattr(state, name)
    with pytest.raises(
        AttributeError, match="no attribute `dynamo_plugin`: it was reset. .* Construct `Accelerator"
    ):
        _ = state.dynamo_plugin
    with pytest.raises(AttributeError, match="'AcceleratorState' object has no attribute 'speed'"):
        _ = state.speed
    AcceleratorState._reset_state(reset_partial_state=True)
    assert not PartialState.is_initialized()


def test_plugin_names_what_kind_of_run_it_is_and_devices_stay_what_they_are():
    plugin = FsdpPlugin()
    state = AcceleratorState(cpu=True, fsdp_plugin=plugin)
    assert state.fsdp_plugin is plugin
    assert state.distributed_type == DistributedType.FSDP
    assert state.is_fsdp2
    assert PartialState().distributed_type == DistributedType.NO
    with pytest.raises(StateError, match="`fsdp_plugin` requests"):
        AcceleratorState(fsdp_plugin=FsdpPlugin())
    assert AcceleratorState(fsdp_plugin=plugin).fsdp_plugin is plugin
    state.distributed_type = DistributedType.NO
    assert not AcceleratorState().is_fsdp2


def test_plugin_without_a_word_changes_nothing():
    state = AcceleratorState(
        cpu=True, dynamo_plugin="dynamo", torch_tp_plugin="tp", megatron_lm_plugin="megatron"
    )
    assert (state.dynamo_plugin, state.torch_tp_plugin, state.megatron_lm_plugin) == (
        "dynamo",
        "tp",
        "megatron",
    )
    assert state.distributed_type == DistributedType.NO
    assert state.deepspeed_plugin is None
    assert state.deepspeed_plugins is None
    assert not state.is_fsdp2


def test_two_engines_are_refused():
    with pytest.raises(ConfigError, match="Only one engine.*`deepspeed_plugin` and `fsdp_plugin`"):
        AcceleratorState(cpu=True, deepspeed_plugin=DeepSpeedPlugin(), fsdp_plugin=FsdpPlugin())


def test_one_deepspeed_plugin_is_selected_at_once():
    plugin = DeepSpeedPlugin()
    state = AcceleratorState(cpu=True, deepspeed_plugin=plugin)
    assert state.deepspeed_plugin is plugin
    assert plugin.selected
    assert state.distributed_type == DistributedType.DEEPSPEED


def test_a_plugin_that_cannot_be_selected_leaves_no_state():
    class Unselectable(DeepSpeedPlugin):
        def select(self, _from_accelerator_state=False):
            raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        AcceleratorState(cpu=True, deepspeed_plugin=Unselectable())
    assert not AcceleratorState.is_initialized()


def test_the_precision_is_that_of_the_plugins_config():
    class Settled(DeepSpeedPlugin):
        deepspeed_config: ClassVar = {"bf16": {"enabled": True}}

        def settle_precision(self, asked):
            return "bf16"

    state = AcceleratorState(cpu=True, mixed_precision="no", deepspeed_plugin=Settled())
    assert state.mixed_precision == "bf16"
    assert "ds_config: {'bf16': {'enabled': True}}" in repr(state)


def test_one_of_several_deepspeed_plugins_is_selected_at_a_time():
    first, second = DeepSpeedPlugin(), DeepSpeedPlugin()
    state = AcceleratorState(cpu=True, deepspeed_plugin={"zero2": first, "zero3": second})
    assert state.deepspeed_plugin is first
    state.select_deepspeed_plugin("zero3")
    assert AcceleratorState().deepspeed_plugin is second is state.get_deepspeed_plugin("zero3")
    assert (first.selected, second.selected) == (False, True)
    assert state.deepspeed_plugins == {"zero2": first, "zero3": second}
    with pytest.raises(UnknownNameError, match="Unknown DeepSpeed plugin `zero4`. Known: zero2, zero3"):
        state.select_deepspeed_plugin("zero4")
    with pytest.raises(ConfigError, match="`name` is missing. Pass one of: zero2, zero3"):
        state.select_deepspeed_plugin()


def test_mesh_of_the_wrong_size_is_refused():
    with pytest.raises(ConfigError, match=r"dp_shard_size=2.*is for 2 processes, but there are 1"):
        AcceleratorState(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=2))
    assert not AcceleratorState.is_initialized()


def mesh_axes():
    config = ParallelismConfig(dp_replicate_size=2)
    state = AcceleratorState(parallelism_config=config)
    assert state.parallelism_config is config
    return state.device_mesh.mesh_dim_names, state.device_mesh.get_local_rank("dp_replicate")


def test_mesh_is_built_with_the_state(world):
    assert world(2).run(mesh_axes) == [(("dp_replicate",), 0), (("dp_replicate",), 1)]


def test_mesh_is_requested_by_the_environment(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "2")
    assert AcceleratorState(cpu=True).parallelism_config is None
    AcceleratorState._reset_state()
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    with pytest.raises(ConfigError, match="tp_size=2"):
        AcceleratorState(cpu=True)
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "1")
    state = AcceleratorState(cpu=True)
    assert state.parallelism_config == ParallelismConfig()
    assert state.device_mesh is None
