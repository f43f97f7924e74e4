from __future__ import annotations

import functools
import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from accel_backends import FullyShardedDataParallelPlugin
from accel_backends.plans.policies import NoWrap
from accel_state.enums import DistributedType
from accel_state.environment.settings import SECTIONS
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Model(nn.Module):
    _no_split_modules = ("Block", "OnlyInLargerModels")

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for setting in SECTIONS["FSDP"]:
        monkeypatch.delenv(setting.variable, raising=False)


@pytest.fixture
def variables(monkeypatch):
    def set_all(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"FSDP_{name.upper()}", value)

    return set_all


def policy(param_dtype, reduce_dtype=None):
    """Return the policy that follows from the dtypes of a run, whose forward autocast casts."""
    return MixedPrecisionPolicy(param_dtype, reduce_dtype, cast_forward_inputs=False)


def plugin(version, **fields):
    return FullyShardedDataParallelPlugin(version, **fields)


def test_the_documented_parameters_come_first_in_their_order():
    documented = """fsdp_version sharding_strategy reshard_after_forward backward_prefetch mixed_precision_policy
        auto_wrap_policy cpu_offload ignored_modules state_dict_type state_dict_config optim_state_dict_config
        limit_all_gathers use_orig_params param_init_fn sync_module_states forward_prefetch activation_checkpointing
        activation_checkpointing_offload cpu_ram_efficient_loading transformer_cls_names_to_wrap min_num_params"""
    parameters = inspect.signature(FullyShardedDataParallelPlugin).parameters
    positional = [name for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY]
    assert positional == documented.split()
    assert all(
        parameters[name].default is (True if name == "limit_all_gathers" else None) for name in positional
    )


def test_the_defaults_of_version_1():
    made = FullyShardedDataParallelPlugin()
    assert (made.fsdp_version, made.strategy) == (1, "fsdp2")
    assert made.distributed_type is DistributedType.FSDP
    assert (made.sharding_strategy, made.reshard_after_forward) == (ShardingStrategy.FULL_SHARD, None)
    assert made.state_dict_type is StateDictType.FULL_STATE_DICT
    assert made.state_dict_config == FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    assert made.optim_state_dict_config == FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
    assert made.cpu_offload == CPUOffload(offload_params=False)
    assert (made.backward_prefetch, made.auto_wrap_policy, made.mixed_precision_policy) == (None, None, None)
    assert (made.use_orig_params, made.sync_module_states, made.forward_prefetch) == (False, False, False)
    assert (made.param_init_fn, made.ignored_modules, made.wrap_policy_name) == (None, None, None)


def test_the_defaults_of_version_2():
    made = plugin(2)
    assert (made.fsdp_version, made.strategy) == (2, "fsdp2")
    assert made.reshard_after_forward is True
    assert made.state_dict_type is StateDictType.SHARDED_STATE_DICT
    assert type(made.cpu_offload) is OffloadPolicy
    assert (made.sharding_strategy, made.use_orig_params, made.sync_module_states) == (None, None, None)
    assert (made.activation_checkpointing, made.cpu_ram_efficient_loading) == (False, False)
    assert (made.num_forward_prefetch, made.num_backward_prefetch, made.parallel_plan) == (0, 0, None)


def test_the_version_comes_from_its_variable(variables):
    variables(version="2")
    assert FullyShardedDataParallelPlugin().fsdp_version == 2
    assert plugin(1).fsdp_version == 1


@pytest.mark.parametrize("version", [0, 3, "2", True, 1.0])
def test_other_versions_are_refused(version):
    with pytest.raises(ConfigError, match="`fsdp_version` must be 1 or 2"):
        plugin(version)


class TestSharding:
    @pytest.mark.parametrize("given", ["shard_grad_op", "2", 2, ShardingStrategy.SHARD_GRAD_OP])
    @pytest.mark.parametrize("field", ["sharding_strategy", "reshard_after_forward"])
    def test_version_1_takes_names_numbers_and_members_under_both_names(self, field, given):
        made = plugin(1, **{field: given})
        assert made.sharding_strategy is ShardingStrategy.SHARD_GRAD_OP
        assert made.reshard_after_forward is None

    @pytest.mark.parametrize("given", ["HYBRID_SHARD_ZERO2", "5", ShardingStrategy._HYBRID_SHARD_ZERO2])
    def test_the_private_member_of_torch_has_its_documented_name(self, given):
        assert plugin(1, sharding_strategy=given).sharding_strategy is ShardingStrategy._HYBRID_SHARD_ZERO2

    def test_an_unknown_strategy_is_refused_with_the_choices(self):
        with pytest.raises(
            ConfigError, match=r"`FUL_SHARD`, .* one of: FULL_SHARD, .*Did you mean `FULL_SHARD`"
        ):
            plugin(1, sharding_strategy="FUL_SHARD")

    def test_a_contradiction_is_refused(self):
        with pytest.raises(ConfigError, match="are one setting"):
            plugin(1, sharding_strategy="NO_SHARD", reshard_after_forward="FULL_SHARD")
        with pytest.raises(ConfigError, match="contradict each other"):
            plugin(2, sharding_strategy="FULL_SHARD", reshard_after_forward=False)

    def test_version_1_refuses_a_truth_value(self):
        with pytest.raises(
            ConfigError, match="`reshard_after_forward` is True, which is for `fsdp_version=2`"
        ):
            plugin(1, reshard_after_forward=True)

    @pytest.mark.parametrize(("given", "expected"), [(False, False), ("false", False), ("yes", True)])
    def test_version_2_takes_truth_values(self, given, expected):
        assert plugin(2, reshard_after_forward=given).reshard_after_forward is expected

    @pytest.mark.parametrize(("given", "expected"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", False)])
    def test_version_2_takes_the_strategies_that_specify_the_same(self, given, expected):
        made = plugin(2, sharding_strategy=given)
        assert (made.reshard_after_forward, made.sharding_strategy) == (expected, None)

    def test_version_2_refuses_hybrid_strategies_and_names_the_mesh(self):
        with pytest.raises(ConfigError, match="`reshard_after_forward` to false, .*`dp_replicate_size`"):
            plugin(2, sharding_strategy="HYBRID_SHARD_ZERO2")

    def test_version_2_refuses_not_to_shard(self):
        with pytest.raises(ConfigError, match="always shards"):
            plugin(2, reshard_after_forward="NO_SHARD")

    def test_the_variable_of_the_version_counts_where_a_launcher_sets_both(self, variables):
        variables(sharding_strategy="FULL_SHARD", reshard_after_forward="false")
        assert plugin(2).reshard_after_forward is False
        assert plugin(1).sharding_strategy is ShardingStrategy.FULL_SHARD

    def test_either_variable_may_hold_the_strategy_of_version_1(self, variables):
        variables(sharding_strategy="FULL_SHARD", reshard_after_forward="HYBRID_SHARD")
        assert plugin(1).sharding_strategy is ShardingStrategy.HYBRID_SHARD
        assert plugin(1, sharding_strategy="NO_SHARD").sharding_strategy is ShardingStrategy.NO_SHARD


@pytest.mark.parametrize(
    ("version", "strategy", "expected"),
    [
        (2, None, MeshLayout(dp_shard=8)),
        (1, "FULL_SHARD", MeshLayout(dp_shard=8)),
        (1, "NO_SHARD", MeshLayout(dp_replicate=8)),
        (1, "HYBRID_SHARD", MeshLayout(dp_replicate=2, dp_shard=4)),
        (1, "HYBRID_SHARD_ZERO2", MeshLayout(dp_replicate=2, dp_shard=4)),
    ],
)
def test_copies_are_sharded_over_all_ranks_or_those_of_a_machine(version, strategy, expected):
    two_machines_of_four = Topology(rank=5, world_size=8, local_rank=1, local_world_size=4)
    assert plugin(version, sharding_strategy=strategy).default_layout(two_machines_of_four) == expected


class TestCheckpoints:
    @pytest.mark.parametrize("given", ["sharded_state_dict", "3", 3, StateDictType.SHARDED_STATE_DICT])
    def test_the_type_is_torchs_and_brings_its_details(self, given):
        made = plugin(1, state_dict_type=given)
        assert made.state_dict_type is StateDictType.SHARDED_STATE_DICT
        assert made.state_dict_config == ShardedStateDictConfig(offload_to_cpu=True)
        assert made.optim_state_dict_config == ShardedOptimStateDictConfig(offload_to_cpu=True)

    @pytest.mark.parametrize(
        ("kind", "config"),
        [
            ("SHARDED_STATE_DICT", ShardedStateDictConfig(offload_to_cpu=True)),
            ("FULL_STATE_DICT", FullStateDictConfig(offload_to_cpu=True, rank0_only=True)),
        ],
    )
    def test_version_2_shows_the_details_of_its_checkpoints_too(self, kind, config):
        assert plugin(2, state_dict_type=kind).state_dict_config == config

    def test_details_that_are_given_stay(self):
        config = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
        made = plugin(1, state_dict_config=config)
        assert made.state_dict_config is config
        assert made.optim_state_dict_config == FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)

    def test_details_of_another_type_are_refused(self):
        with pytest.raises(ConfigError, match="SHARDED_STATE_DICT needs a `ShardedStateDictConfig`"):
            plugin(1, state_dict_type="SHARDED_STATE_DICT", state_dict_config=FullStateDictConfig())

    def test_the_type_can_be_changed_later(self):
        made = plugin(1)
        made.set_state_dict_type("SHARDED_STATE_DICT")
        assert made.state_dict_type is StateDictType.SHARDED_STATE_DICT
        assert isinstance(made.state_dict_config, ShardedStateDictConfig)

    @pytest.mark.parametrize("version", [1, 2])
    def test_flattened_parameters_are_not_saved(self, version):
        with pytest.raises(ConfigError, match="`SHARDED_STATE_DICT` or `FULL_STATE_DICT`"):
            plugin(version, state_dict_type="LOCAL_STATE_DICT")


class TestOffload:
    def test_each_version_has_its_type(self):
        assert plugin(1, cpu_offload=True).cpu_offload == CPUOffload(offload_params=True)
        assert plugin(2, cpu_offload=True).cpu_offload == CPUOffloadPolicy(
            pin_memory=torch.accelerator.is_available()
        )
        assert type(plugin(2, cpu_offload=False).cpu_offload) is OffloadPolicy

    def test_an_object_of_the_version_stays(self):
        policy = CPUOffloadPolicy(pin_memory=False)
        assert plugin(2, cpu_offload=policy).cpu_offload is policy

    def test_an_object_of_the_other_version_is_refused(self):
        with pytest.raises(ConfigError, match="`fsdp_version=1` needs True, False or a `CPUOffload`"):
            plugin(1, cpu_offload=CPUOffloadPolicy())
        with pytest.raises(ConfigError, match="`CPUOffload`, but `fsdp_version=2` needs"):
            plugin(2, cpu_offload=CPUOffload())


class TestPrecision:
    def test_a_dict_becomes_the_policy_of_the_version(self):
        given = {"param_dtype": "bf16", "reduce_dtype": torch.float32}
        assert plugin(1, mixed_precision_policy=given).mixed_precision_policy == MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
        assert plugin(2, mixed_precision_policy=given).mixed_precision_policy == MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )

    def test_a_word_computes_in_it_and_reduces_in_fp32(self):
        assert plugin(2, mixed_precision_policy="bf16").mixed_precision_policy == MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
        assert plugin(1, mixed_precision_policy="fp16").mixed_precision_policy == MixedPrecision(
            param_dtype=torch.float16, reduce_dtype=torch.float32, buffer_dtype=torch.float16
        )

    def test_gradients_are_reduced_in_what_is_requested(self):
        made = plugin(2, mixed_precision_policy="bf16", reduce_dtype="bf16")
        assert made.mixed_precision_policy.reduce_dtype is torch.bfloat16
        later = plugin(2, reduce_dtype=torch.float16)
        later.set_mixed_precision("bf16")
        assert later.mixed_precision_policy.reduce_dtype is torch.float16

    def test_two_dtypes_for_the_reduction_are_refused(self):
        with pytest.raises(ConfigError, match="`reduce_dtype` has no effect beside"):
            plugin(2, mixed_precision_policy={"param_dtype": "bf16"}, reduce_dtype="bf16")

    def test_an_unknown_key_is_refused_with_the_known_ones(self):
        with pytest.raises(
            ConfigError, match=r"`buffer_dtype`, which `fsdp_version=2` does not know. Known: param_"
        ):
            plugin(2, mixed_precision_policy={"buffer_dtype": "bf16"})

    @pytest.mark.parametrize("given", ["int8", "fp4", "nn", 3])
    def test_what_is_no_floating_point_format_is_refused(self, given):
        with pytest.raises(ConfigError, match=r"`reduce_dtype` is `.*`, but it must be a floating"):
            plugin(2, reduce_dtype=given)

    def test_a_policy_of_the_other_version_is_refused(self):
        with pytest.raises(ConfigError, match="`fsdp_version=2` needs a `MixedPrecisionPolicy`"):
            plugin(2, mixed_precision_policy=MixedPrecision())
        with pytest.raises(ConfigError, match="`fsdp_version=1` needs a `MixedPrecision`"):
            plugin(1, mixed_precision_policy=MixedPrecisionPolicy())

    def test_a_policy_that_is_there_is_replaced_only_on_demand(self):
        policy = MixedPrecisionPolicy(param_dtype=torch.float16)
        made = plugin(2, mixed_precision_policy=policy)
        made.set_mixed_precision("bf16")
        assert made.mixed_precision_policy is policy
        made.set_mixed_precision(torch.bfloat16, override=True)
        assert made.mixed_precision_policy.param_dtype is torch.bfloat16

    def test_buffers_can_stay_in_fp32(self):
        made = plugin(1)
        made.set_mixed_precision("bf16", buffer_autocast=True)
        assert made.mixed_precision_policy.buffer_dtype is torch.float32


class TestUnits:
    def test_names_select_the_policies_of_torch(self):
        made = plugin(2, auto_wrap_policy="transformer_based_wrap")
        assert made.auto_wrap_policy is transformer_auto_wrap_policy
        assert made.wrap_policy_name == "TRANSFORMER_BASED_WRAP"
        assert plugin(2, auto_wrap_policy="SIZE_BASED_WRAP").auto_wrap_policy is size_based_auto_wrap_policy

    def test_no_policy_and_the_wish_for_none_can_be_distinguished(self):
        assert plugin(2).wrap_policy_name is None
        chosen = plugin(2, auto_wrap_policy="no_wrap")
        assert (chosen.auto_wrap_policy, chosen.wrap_policy_name) == (None, "NO_WRAP")

    def test_a_function_stays_and_has_no_name(self):
        def policy(module, recurse, nonwrapped_numel):
            return recurse

        made = plugin(2, auto_wrap_policy=policy)
        assert (made.auto_wrap_policy, made.wrap_policy_name) == (policy, None)

    def test_a_value_that_is_no_policy_is_refused(self):
        with pytest.raises(
            ConfigError, match=r"`auto_wrap_policy` is a `int`.* one of: TRANSFORMER_BASED_WRAP"
        ):
            plugin(2, auto_wrap_policy=3)
        with pytest.raises(ConfigError, match="Did you mean `NO_WRAP`"):
            plugin(2, auto_wrap_policy="nowrap")

    @pytest.mark.parametrize("names", [None, ["Block"], "Block"])
    def test_a_model_completes_the_classes(self, names):
        made = plugin(2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=names)
        made.set_auto_wrap_policy(Model())
        assert isinstance(made.auto_wrap_policy, functools.partial)
        assert made.auto_wrap_policy.keywords == {"transformer_layer_cls": {Block}}
        assert made.wrap_policy_name == "TRANSFORMER_BASED_WRAP"
        made.set_auto_wrap_policy(Model())
        assert made.auto_wrap_policy.func is transformer_auto_wrap_policy

    def test_a_class_that_the_model_lacks_is_named_with_those_it_has(self):
        made = plugin(2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Blok"])
        with pytest.raises(ConfigError, match=r"layer class Blok in the model\..*`Model` are: Block, Linear"):
            made.set_auto_wrap_policy(Model())

    def test_a_model_that_names_no_classes_is_refused(self):
        made = plugin(2, auto_wrap_policy="transformer_based_wrap")
        with pytest.raises(ConfigError, match="`Linear` names none in `_no_split_modules`"):
            made.set_auto_wrap_policy(nn.Linear(2, 2))

    def test_a_size_reaches_the_policy(self):
        made = plugin(1, auto_wrap_policy="size_based_wrap", min_num_params=20)
        made.set_auto_wrap_policy(Model())
        assert made.auto_wrap_policy.keywords == {"min_num_params": 20}

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_size_of_nothing_leaves_the_model_one_unit(self, version):
        made = plugin(version, auto_wrap_policy="size_based_wrap", min_num_params=0)
        assert made.units_policy() == NoWrap()
        made.set_auto_wrap_policy(Model())
        assert (made.auto_wrap_policy, made.units_policy()) == (None, NoWrap())

    def test_a_size_below_nothing_is_refused(self):
        with pytest.raises(
            ConfigError, match="`min_num_params` must be a whole number of at least 0, got -1"
        ):
            plugin(1, auto_wrap_policy="size_based_wrap", min_num_params=-1)

    def test_ignored_modules_may_be_a_pattern_of_names(self):
        assert plugin(2, ignored_modules="block.*").ignored_modules == "block.*"

    def test_what_the_policy_does_not_look_at_is_refused(self):
        with pytest.raises(ConfigError, match="`transformer_cls_names_to_wrap` has no effect unless"):
            plugin(2, transformer_cls_names_to_wrap=["Block"])
        with pytest.raises(ConfigError, match="`min_num_params` has no effect unless"):
            plugin(2, auto_wrap_policy="transformer_based_wrap", min_num_params=3)

    def test_layers_named_by_a_variable_need_their_policy(self, variables):
        variables(transformer_cls_to_wrap="Block")
        with pytest.raises(ConfigError, match="`transformer_cls_names_to_wrap` has no effect unless"):
            plugin(2)
        assert plugin(2, auto_wrap_policy="size_based_wrap").transformer_cls_names_to_wrap is None


class TestIgnoredModules:
    def test_modules_are_kept_as_a_list(self):
        modules = [nn.Linear(1, 1), nn.Linear(1, 1)]
        assert plugin(2, ignored_modules=iter(modules)).ignored_modules == modules

    def test_a_pattern_stays_text(self):
        assert plugin(2, ignored_modules=r"blocks\.[01]").ignored_modules == r"blocks\.[01]"

    def test_a_broken_pattern_and_other_objects_are_refused(self):
        with pytest.raises(ConfigError, match="not a regular expression"):
            plugin(2, ignored_modules="blocks.(")
        with pytest.raises(ConfigError, match="holds a `str`"):
            plugin(2, ignored_modules=["blocks"])


class TestVersions:
    @pytest.mark.parametrize(
        "fields",
        [
            {"state_dict_config": FullStateDictConfig()},
            {"optim_state_dict_config": FullOptimStateDictConfig()},
            {"param_init_fn": print},
            {"limit_all_gathers": False},
        ],
    )
    def test_version_2_refuses_fields_of_version_1(self, fields):
        [name] = fields
        with pytest.raises(ConfigError, match=f"`{name}` is for `fsdp_version=1`"):
            plugin(2, **fields)

    def test_version_1_takes_fields_of_version_2(self, variables):
        variables(activation_checkpointing="true", activation_checkpointing_offload="true")
        config = plugin(1, num_backward_prefetch=3, parallel_plan={"units": ["blocks.*"]}).config()
        assert (config.activation_checkpointing_offload, config.num_backward_prefetch) == (True, 3)
        assert config.parallel_plan == {"units": ["blocks.*"]}

    @pytest.mark.parametrize(
        "fields",
        [{"backward_prefetch": "BACKWARD_POST"}, {"limit_all_gathers": False}, {"backward_prefetch": "3"}],
    )
    def test_what_fully_shard_does_otherwise_is_reported(self, fields):
        [name] = fields
        with pytest.warns(UserWarning, match=f"`{name}` has no effect") as told:
            plugin(1, **fields)
        assert len(told) == 1

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, {"reshard_after_forward": True, "policy": policy(None), "casts_forward": False}),
            ({"sharding_strategy": "SHARD_GRAD_OP"}, {"reshard_after_forward": False}),
            ({"sharding_strategy": "NO_SHARD"}, {"reshard_after_forward": False}),
            ({"sharding_strategy": "HYBRID_SHARD"}, {"reshard_after_forward": True}),
            ({"sharding_strategy": "HYBRID_SHARD_ZERO2"}, {"reshard_after_forward": False}),
            ({"forward_prefetch": True}, {"num_forward_prefetch": 1}),
            ({"forward_prefetch": True, "num_forward_prefetch": 2}, {"num_forward_prefetch": 2}),
            ({"param_init_fn": print}, {"init_module": print}),
            (
                {"mixed_precision_policy": MixedPrecision(param_dtype=torch.bfloat16)},
                {"policy": policy(torch.bfloat16, torch.bfloat16), "casts_forward": True},
            ),
            (
                {"mixed_precision_policy": MixedPrecision(param_dtype=torch.float32)},
                {"policy": MixedPrecisionPolicy(torch.float32, torch.float32)},
            ),
            ({"mixed_precision_policy": MixedPrecision()}, {"policy": MixedPrecisionPolicy()}),
            ({"reduce_dtype": "bf16"}, {"policy": policy(None, torch.bfloat16)}),
        ],
    )
    def test_words_of_version_1_are_those_of_fully_shard(self, fields, expected):
        config = plugin(1, **fields).config()
        assert {name: getattr(config, name) for name in expected} == expected

    def test_the_dtype_of_the_run_counts_where_no_policy_is_given(self):
        config = plugin(2).config(torch.bfloat16, has_autocast=False)
        assert (config.policy, config.casts_forward) == (
            MixedPrecisionPolicy(torch.bfloat16, torch.float32),
            True,
        )
        given = plugin(2, mixed_precision_policy="fp32").config(torch.bfloat16)
        assert (given.policy.param_dtype, given.casts_forward) == (torch.float32, False)

    def test_offload_of_version_1_is_a_policy(self):
        policy = CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())
        assert plugin(1, cpu_offload=True).config().offload == policy
        assert type(plugin(1).config().offload) is OffloadPolicy

    def test_settings_that_a_library_changes_later_count(self):
        made = plugin(1)
        made.activation_checkpointing, made.ignored_modules = True, "head"
        assert (made.config().activation_checkpointing, made.config().ignored_modules) == (True, "head")

    def test_what_version_2_ignores_is_reported_once_and_together(self, variables):
        variables(backward_prefetch="BACKWARD_PRE")
        with pytest.warns(UserWarning, match="`backward_prefetch`, `forward_prefetch` are ignored") as told:
            made = plugin(2, forward_prefetch=True)
        assert len(told) == 1
        assert (made.backward_prefetch, made.forward_prefetch, made.sync_module_states) == (None, None, None)

    def test_what_version_2_does_anyway_is_no_reason_to_warn(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plugin(2, use_orig_params=True, sync_module_states=True, backward_prefetch="no_prefetch")

    def test_parameters_that_version_2_cannot_hide_are_reported(self):
        with pytest.warns(UserWarning, match="`use_orig_params` is ignored"):
            plugin(2, use_orig_params=False)

    def test_offload_of_checkpoints_needs_checkpointing(self):
        with pytest.raises(ConfigError, match="without `activation_checkpointing`"):
            plugin(2, activation_checkpointing_offload=True)

    def test_a_number_of_units_is_checked(self):
        with pytest.raises(
            ConfigError, match="`num_forward_prefetch` must be a whole number of at least 0, got -1"
        ):
            plugin(2, num_forward_prefetch=-1)


# What the launcher of Accelerate 1.15 sets where nobody requested anything but FSDP.
SET_FOR_NOBODY = {
    "activation_checkpointing": "false",
    "activation_checkpointing_offload": "false",
    "cpu_ram_efficient_loading": "true",
    "forward_prefetch": "false",
    "min_num_params": "100000000",
    "offload_params": "false",
    "reshard_after_forward": "true",
    "sharding_strategy": "FULL_SHARD",
    "sync_module_states": "true",
    "transformer_cls_to_wrap": "",
    "use_orig_params": "true",
}


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_launcher_of_accelerate_sets_without_effect_is_no_reason_to_complain(variables, version):
    variables(**SET_FOR_NOBODY, version=str(version))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = FullyShardedDataParallelPlugin()
    assert made.fsdp_version == version
    assert made.reshard_after_forward is (True if version == 2 else None)


class TestLoading:
    def test_weights_of_one_process_are_sent_to_all(self):
        made = plugin(1, cpu_ram_efficient_loading=True)
        assert made.sync_module_states is True

    def test_the_contradiction_is_reported(self):
        with pytest.warns(UserWarning, match="`sync_module_states=False` has no effect"):
            made = plugin(1, cpu_ram_efficient_loading=True, sync_module_states=False)
        assert made.sync_module_states is True


# For each setting: its text, the version, the field and what stands there afterwards.
FROM_VARIABLES = [
    ("fsdp_version", "2", None, "fsdp_version", 2),
    ("fsdp_sharding_strategy", "NO_SHARD", 1, "sharding_strategy", ShardingStrategy.NO_SHARD),
    ("fsdp_reshard_after_forward", "false", 2, "reshard_after_forward", False),
    ("fsdp_offload_params", "true", 1, "cpu_offload", CPUOffload(offload_params=True)),
    ("fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", 2, "auto_wrap_policy", size_based_auto_wrap_policy),
    ("fsdp_transformer_layer_cls_to_wrap", "A,B", 2, "transformer_cls_names_to_wrap", ["A", "B"]),
    ("fsdp_min_num_params", "17", 2, "min_num_params", 17),
    ("fsdp_backward_prefetch", "BACKWARD_POST", 1, "backward_prefetch", BackwardPrefetch.BACKWARD_POST),
    ("fsdp_forward_prefetch", "true", 1, "forward_prefetch", True),
    ("fsdp_state_dict_type", "FULL_STATE_DICT", 2, "state_dict_type", StateDictType.FULL_STATE_DICT),
    ("fsdp_use_orig_params", "true", 1, "use_orig_params", True),
    ("fsdp_cpu_ram_efficient_loading", "true", 2, "cpu_ram_efficient_loading", True),
    ("fsdp_sync_module_states", "true", 1, "sync_module_states", True),
    ("fsdp_activation_checkpointing", "true", 2, "activation_checkpointing", True),
    ("fsdp_activation_checkpointing_offload", "true", 2, "activation_checkpointing_offload", True),
    ("fsdp_ignored_modules", "head|norm", 2, "ignored_modules", "head|norm"),
]
NEEDED = {
    "fsdp_transformer_layer_cls_to_wrap": {"auto_wrap_policy": "transformer_based_wrap"},
    "fsdp_min_num_params": {"auto_wrap_policy": "size_based_wrap"},
    "fsdp_activation_checkpointing_offload": {"activation_checkpointing": True},
}


@pytest.mark.parametrize(("setting", "text", "version", "field", "expected"), FROM_VARIABLES)
def test_a_variable_fills_the_field_that_is_not_given(monkeypatch, setting, text, version, field, expected):
    [row] = [row for row in SECTIONS["FSDP"] if row.name == setting]
    fields = NEEDED.get(setting, {})
    before = getattr(plugin(version, **fields), field)
    assert before != expected
    monkeypatch.setenv(row.variable, text)
    assert getattr(plugin(version, **fields), field) == expected


def test_every_setting_of_fsdp_has_its_field():
    switch = {"use_fsdp"}
    assert {row.name for row in SECTIONS["FSDP"]} - switch == {case[0] for case in FROM_VARIABLES}


def test_an_argument_wins_over_the_variable(variables):
    variables(
        version="1", offload_params="true", state_dict_type="FULL_STATE_DICT", activation_checkpointing="true"
    )
    made = plugin(2, cpu_offload=False, state_dict_type="SHARDED_STATE_DICT", activation_checkpointing=False)
    assert (made.fsdp_version, type(made.cpu_offload)) == (2, OffloadPolicy)
    assert made.state_dict_type is StateDictType.SHARDED_STATE_DICT
    assert made.activation_checkpointing is False


@pytest.mark.parametrize("number", [0, 1, -2])
def test_a_number_of_ranks_below_two_or_beside_a_strategy_is_an_error(number):
    with pytest.raises(
        ConfigError, match=f"`reshard_after_forward` must be a whole number .* 2, got {number}"
    ):
        plugin(2, reshard_after_forward=number)
    with pytest.raises(ConfigError, match="are one setting"):
        plugin(2, sharding_strategy="SHARD_GRAD_OP", reshard_after_forward=4)
