from dataclasses import dataclass
from typing import ClassVar

import pytest

from accel import Accelerator, DataLoaderConfiguration, ProjectConfiguration
from accel.configuration import (
    NOT_GIVEN,
    one_of,
    resolve_accumulation,
    resolve_dynamo,
    resolve_engine,
    resolve_loader,
    resolve_parallelism,
    resolve_project,
    resolve_rng_types,
)
from accel_backends import TorchDynamoPlugin, TorchTensorParallelPlugin
from accel_state import GradientAccumulationPlugin, ParallelismConfig
from accel_state.errors import ConfigError


@dataclass
class Engine:
    strategy: ClassVar[str] = "single"
    gradient_accumulation_steps: int | str | None = None


class TestAccumulation:
    def test_the_argument_wins_over_the_setting(self, monkeypatch):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")
        with pytest.warns(
            UserWarning, match="launcher sets `gradient_accumulation_steps` to 8, but the script to 4"
        ):
            plugin = resolve_accumulation(4, None)
        assert plugin.num_steps == 4

    def test_the_setting_fills_in_for_the_argument(self, monkeypatch):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")
        assert resolve_accumulation(1, None).num_steps == 8

    def test_the_plugin_keeps_its_choices_when_the_setting_fills_in_its_steps(self, monkeypatch):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")
        plugin = GradientAccumulationPlugin(sync_with_dataloader=False)
        resolved = resolve_accumulation(1, plugin)
        assert (resolved.num_steps, resolved.sync_with_dataloader) == (2, False)

    def test_both_arguments_are_refused(self):
        with pytest.raises(ConfigError, match="Pass one of them"):
            resolve_accumulation(2, GradientAccumulationPlugin(num_steps=2))

    @pytest.mark.parametrize("steps", [0, -3, 2.5, True, "4"])
    def test_what_is_no_count_is_refused(self, steps):
        with pytest.raises(ConfigError, match=r"whole number of at least 1"):
            resolve_accumulation(steps, None)


class TestLoader:
    def test_the_older_argument_sets_the_configuration(self):
        assert resolve_loader(True, None).split_batches is True

    def test_the_users_configuration_is_not_changed(self):
        config = DataLoaderConfiguration()
        assert resolve_loader(True, config) is not config
        assert config.split_batches is False

    def test_left_out_the_configuration_specifies_it(self):
        config = DataLoaderConfiguration(split_batches=True)
        assert resolve_loader(NOT_GIVEN, config) == config

    def test_a_contradiction_is_refused(self):
        with pytest.raises(ConfigError, match="`split_batches` is False here and True in"):
            resolve_loader(False, DataLoaderConfiguration(split_batches=True))


class TestStepsOfEngine:
    def test_a_number_of_the_engine_is_that_of_the_run(self):
        assert resolve_accumulation(1, None, engine=Engine(5)).num_steps == 5

    @pytest.mark.parametrize("steps", ["auto", None, 4])
    def test_an_engine_that_leaves_it_open_or_agrees_changes_nothing(self, steps):
        plugin = GradientAccumulationPlugin(num_steps=4)
        assert resolve_accumulation(1, plugin, engine=Engine(steps)) is plugin

    def test_another_number_is_refused(self):
        with pytest.raises(
            ConfigError, match="is 5 by the Engine, but 4 by the Accelerator. Remove one of them"
        ):
            resolve_accumulation(4, None, engine=Engine(5))


class TestEngine:
    def test_none_is_requested(self):
        assert resolve_engine({"fsdp_plugin": None}) == ({"fsdp_plugin": None}, None)

    def test_a_plugin_names_its_strategy(self):
        engine = Engine()
        given = {"fsdp_plugin": engine}
        assert resolve_engine(given) == (given, engine)

    def test_the_settings_of_a_launcher_make_the_plugin_of_megatron(self, monkeypatch):
        monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
        monkeypatch.setenv("MEGATRON_LM_TP_DEGREE", "2")
        plugins, plugin = resolve_engine({})
        assert plugins == {"megatron_lm_plugin": plugin}
        assert (plugin.tp_degree, plugin.strategy) == (2, "megatron")

    @pytest.mark.parametrize("version", ["1", "2"])
    def test_the_settings_of_a_launcher_make_the_plugin_of_its_engine(self, monkeypatch, version):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        monkeypatch.setenv("FSDP_VERSION", version)
        plugins, plugin = resolve_engine({"fsdp_plugin": None})
        assert plugins == {"fsdp_plugin": plugin}
        assert (plugin.fsdp_version, plugin.strategy) == (int(version), "fsdp2")

    def test_the_settings_of_a_launcher_make_the_plugin_of_deepspeed(self, monkeypatch):
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "1")
        plugins, plugin = resolve_engine({})
        assert plugins == {"deepspeed_plugin": plugin}
        assert (plugin.zero_stage, plugin.strategy) == (1, "deepspeed")

    def test_the_first_of_several_plugins_counts(self):
        first, second = Engine(), Engine()
        given = {"deepspeed_plugin": {"student": first, "teacher": second}}
        assert resolve_engine(given) == (given, first)

    @pytest.mark.parametrize("plugins", [{}, {"a": Engine(), "b": object()}])
    def test_several_plugins_must_be_for_one_strategy(self, plugins):
        with pytest.raises(ConfigError, match="`deepspeed_plugin` is a dict of"):
            resolve_engine({"deepspeed_plugin": plugins})

    def test_two_names_for_the_same_argument_are_refused(self):
        assert one_of(deepspeed_plugin=None, deepspeed_plugins=3) == 3
        with pytest.raises(ConfigError, match="`deepspeed_plugin` and `deepspeed_plugins` are one setting"):
            one_of(deepspeed_plugin=1, deepspeed_plugins=2)

    def test_the_plugin_of_the_script_wins_over_the_launcher(self, monkeypatch):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        engine = Engine()
        assert resolve_engine({"fsdp_plugin": engine})[1] is engine

    def test_an_earlier_plugin_continues_where_nothing_else_is_passed(self, monkeypatch):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        engine, given = Engine(), {"fsdp_plugin": None}
        found = resolve_engine(given, earlier={"fsdp_plugin": engine})
        assert found == (given, engine)

    def test_two_engines_are_refused(self):
        with pytest.raises(ConfigError, match="got `deepspeed_plugin`, `fsdp_plugin`"):
            resolve_engine({"deepspeed_plugin": Engine(), "fsdp_plugin": Engine()})

    def test_a_plugin_without_a_strategy_is_refused(self):
        with pytest.raises(ConfigError, match="`fsdp_plugin` is a object, which does not name its strategy"):
            resolve_engine({"fsdp_plugin": object()})


class TestParallelism:
    def test_the_older_plugin_becomes_an_axis_and_warns(self):
        with pytest.warns(FutureWarning, match=r"pass `parallelism_config=ParallelismConfig\(tp_size=2\)`"):
            config = resolve_parallelism(TorchTensorParallelPlugin(2), None)
        assert config.tp_size == 2

    def test_both_settings_together_are_refused(self):
        with pytest.raises(ConfigError, match="`torch_tp_plugin` and `parallelism_config` are one setting"):
            resolve_parallelism(TorchTensorParallelPlugin(2), ParallelismConfig(tp_size=2))

    def test_the_configuration_stays_as_it_is(self):
        config = ParallelismConfig()
        assert resolve_parallelism(None, config) is config
        assert resolve_parallelism(None, None) is None


def test_a_project_folder_does_not_override_the_configurations_own():
    config = ProjectConfiguration(project_dir="a")
    assert resolve_project("b", config).project_dir == "a"
    assert resolve_project("b", ProjectConfiguration(logging_dir="l")) == ProjectConfiguration("b", "l")


def test_the_projects_configuration_is_copied():
    config = ProjectConfiguration()
    resolve_project("b", config)
    assert config.project_dir is None


def test_two_ways_of_requesting_a_compiler_are_refused():
    with pytest.raises(ConfigError, match="Pass one of them"):
        resolve_dynamo("eager", TorchDynamoPlugin(backend="eager"))


def test_rng_types_default_to_the_samplers_generator():
    assert [str(kind) for kind in resolve_rng_types(None)] == ["generator"]
    assert [str(kind) for kind in resolve_rng_types(["torch", "generator"])] == ["torch", "generator"]


def test_an_earlier_compiler_is_used_again_where_no_other_is_requested():
    earlier = TorchDynamoPlugin(backend="eager")
    assert resolve_dynamo(None, None, earlier=earlier) is earlier
    assert resolve_dynamo("inductor", None, earlier=earlier).backend == "INDUCTOR"


@pytest.mark.usefixtures("fresh_state")
def test_a_second_accelerator_compiles_as_the_first_one():
    first = Accelerator(cpu=True, dynamo_backend="eager")
    assert Accelerator().configuration.dynamo == first.configuration.dynamo
