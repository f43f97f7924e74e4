from __future__ import annotations

import re

import pytest

from accel_state.environment.parsers import boolean, choice, names, number
from accel_state.environment.settings import SECTIONS, SETTINGS, LaunchColumns, Setting, find_setting, rule
from accel_state.errors import ConfigError, UnknownNameError

PRECISION = Setting("precision", "MY_PRECISION", choice("no", "fp16"), "no", "Number format.")
# The variables that scripts and downstream libraries read and write. One that ends in `_` is a prefix.
VARIABLES = [
    "ACCELERATE_ALLOW_CP_STANDALONE",
    "ACCELERATE_BYPASS_DEVICE_MAP",
    "ACCELERATE_CONFIG_DS_FIELDS",
    "ACCELERATE_CPU_AFFINITY",
    "ACCELERATE_DEBUG_MODE",
    "ACCELERATE_DEBUG_RDV_FILE",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "ACCELERATE_DOWNCAST_BF16",
    "ACCELERATE_DYNAMO_",
    "ACCELERATE_DYNAMO_BACKEND",
    "ACCELERATE_DYNAMO_MODE",
    "ACCELERATE_DYNAMO_USE_DYNAMIC",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
    "ACCELERATE_ENABLE_RICH",
    "ACCELERATE_FP8_",
    "ACCELERATE_FP8_BACKEND",
    "ACCELERATE_FP8_OPT_LEVEL",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "ACCELERATE_GRADIENT_CLIPPING",
    "ACCELERATE_INIT_INCLUDE_BUFFERS",
    "ACCELERATE_LOG_LEVEL",
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_NUM_PROCESSES",
    "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE",
    "ACCELERATE_TORCH_DEVICE",
    "ACCELERATE_USE_CPU",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_MEGATRON_LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
    "ACCELERATE_USE_SAGEMAKER",
    "FP8_OVERRIDE_DGRAD",
    "FP8_OVERRIDE_FPROP",
    "FP8_OVERRIDE_WGRAD",
    "FSDP_ACTIVATION_CHECKPOINTING",
    "FSDP_AUTO_WRAP_POLICY",
    "FSDP_BACKWARD_PREFETCH",
    "FSDP_CPU_RAM_EFFICIENT_LOADING",
    "FSDP_FORWARD_PREFETCH",
    "FSDP_IGNORED_MODULES",
    "FSDP_MIN_NUM_PARAMS",
    "FSDP_OFFLOAD_PARAMS",
    "FSDP_RESHARD_AFTER_FORWARD",
    "FSDP_SHARDING_STRATEGY",
    "FSDP_STATE_DICT_TYPE",
    "FSDP_SYNC_MODULE_STATES",
    "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "FSDP_USE_ORIG_PARAMS",
    "FSDP_VERSION",
    "HF_HOME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMP_NUM_THREADS",
    "PARALLELISM_CONFIG_CP_BACKEND",
    "PARALLELISM_CONFIG_CP_COMM_STRATEGY",
    "PARALLELISM_CONFIG_CP_SIZE",
    "PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
    "PARALLELISM_CONFIG_DP_SHARD_SIZE",
    "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION",
    "PARALLELISM_CONFIG_SP_BACKEND",
    "PARALLELISM_CONFIG_SP_SEQ_LENGTH",
    "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE",
    "PARALLELISM_CONFIG_SP_SIZE",
    "PARALLELISM_CONFIG_TP_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "TPU_NAME",
    "XLA_DOWNCAST_BF16",
    "XLA_USE_BF16",
]
ALL = [found for section in SECTIONS.values() for found in section]
each = pytest.mark.parametrize("found", ALL, ids=lambda found: found.name)


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_that_others_use_has_its_line(variable):
    if variable.endswith("_"):
        assert sum(found.variable.startswith(variable) for found in ALL) > 1
    else:
        assert sum(found.variable == variable for found in ALL) == 1


@pytest.mark.parametrize("attribute", ["name", "variable", "flag", "config_key"])
def test_no_two_lines_share_a_name(attribute):
    given = [getattr(found, attribute) for found in ALL if getattr(found, attribute) is not None]
    assert len(given) == len(set(given))


@each
def test_a_default_reads_back_as_itself(found):
    if found.default not in (None, ()):
        assert found.value_of(found.text_of(found.default)) == found.default


@each
def test_every_choice_is_accepted_in_any_case(found):
    for word in found.choices or ():
        assert (
            found.text_of(found.value_of(word.lower())) == found.text_of(found.value_of(word.upper())) == word
        )


@each
def test_every_line_is_fit_to_be_printed(found):
    assert found.help.endswith(".")
    assert "\n" not in found.help
    assert found.parse.accepts
    assert re.fullmatch(r"[a-z0-9_]+", found.name)
    assert found.flag is None or re.fullmatch(r"--[a-z0-9_]+", found.flag)
    assert found.config_key is None or re.fullmatch(r"([a-z0-9_]+_config\.)?[a-z0-9_]+", found.config_key)


def test_a_setting_is_found_by_its_name():
    assert find_setting("mixed_precision") is SETTINGS["mixed_precision"]
    with pytest.raises(
        UnknownNameError, match="Unknown setting `mixed_precison`.*Did you mean `mixed_precision`"
    ):
        find_setting("mixed_precison")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("mixed_precision", "BF16", "bf16"),
        ("log_level", "info", "INFO"),
        ("gradient_accumulation_steps", "4", 4),
        ("gradient_accumulation_steps", "auto", None),
        ("downcast_bf16", "no", False),
        ("fsdp_version", "2", 2),
        ("fsdp_sharding_strategy", "1", "FULL_SHARD"),
        ("fsdp_sharding_strategy", "hybrid_shard_zero2", "HYBRID_SHARD_ZERO2"),
        ("fsdp_reshard_after_forward", "false", False),
        ("fsdp_reshard_after_forward", "SHARD_GRAD_OP", "SHARD_GRAD_OP"),
        ("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "TRANSFORMER_BASED_WRAP"),
        ("fsdp_state_dict_type", "3", "SHARDED_STATE_DICT"),
        ("fsdp_transformer_layer_cls_to_wrap", "BertLayer,BertEmbeddings", ("BertLayer", "BertEmbeddings")),
        ("deepspeed_zero_stage", "3", 3),
        ("deepspeed_offload_param_device", "NVME", "nvme"),
        ("deepspeed_offload_param_nvme_path", "none", None),
        ("gradient_clipping", "1.0", 1.0),
        ("gradient_clipping", "none", None),
        ("dynamo_backend", "inductor", "INDUCTOR"),
        ("dynamo_mode", "max-autotune", "max-autotune"),
        ("fp8_backend", "te", "TE"),
        ("fp8_opt_level", "o2", "O2"),
        ("parallelism_dp_shard_size", "8", 8),
        ("master_port", "29500", 29500),
        ("xla_use_bf16", "1", True),
    ],
)
def test_text_as_users_write_it_becomes_the_value_the_code_wants(name, text, value):
    assert find_setting(name).value_of(text) == value


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("mixed_precision", "no"),
        ("use_cpu", False),
        ("fsdp_version", 1),
        ("fsdp_sharding_strategy", "FULL_SHARD"),
        ("deepspeed_zero_stage", 2),
        ("gradient_accumulation_steps", None),
        ("dynamo_backend", "NO"),
        ("parallelism_tp_size", 1),
        ("config_ds_fields", ()),
    ],
)
def test_what_is_unset_has_the_documented_default(name, default):
    assert find_setting(name).value_of(None) == default


@pytest.mark.parametrize(
    ("flag", "config_key", "variable"),
    [
        ("--mixed_precision", "mixed_precision", "ACCELERATE_MIXED_PRECISION"),
        ("--cpu", "use_cpu", "ACCELERATE_USE_CPU"),
        ("--main_process_ip", "main_process_ip", "MASTER_ADDR"),
        ("--zero_stage", "deepspeed_config.zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
        ("--zero3_init_flag", "deepspeed_config.zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT"),
        ("--fsdp_offload_params", "fsdp_config.fsdp_offload_params", "FSDP_OFFLOAD_PARAMS"),
        (
            "--fsdp_transformer_layer_cls_to_wrap",
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
            "FSDP_TRANSFORMER_CLS_TO_WRAP",
        ),
        (
            "--fsdp_backward_prefetch_policy",
            "fsdp_config.fsdp_backward_prefetch_policy",
            "FSDP_BACKWARD_PREFETCH",
        ),
        ("--fp8_backend", "fp8_config.backend", "ACCELERATE_FP8_BACKEND"),
        ("--megatron_lm_tp_degree", "megatron_lm_config.megatron_lm_tp_degree", "MEGATRON_LM_TP_DEGREE"),
    ],
)
def test_flag_config_key_and_variable_are_the_documented_ones(flag, config_key, variable):
    lines = {found.flag: found for section in SECTIONS.values() for found in section}
    assert (lines[flag].config_key, lines[flag].variable) == (config_key, variable)


def test_unset_and_blank_give_the_default():
    assert PRECISION.value_of(None) == "no"
    assert PRECISION.value_of("  ") == "no"


def test_a_wrong_value_names_variable_value_choices_and_the_nearest():
    with pytest.raises(ConfigError) as caught:
        PRECISION.value_of("fp61")
    assert (
        str(caught.value) == "`MY_PRECISION` is `fp61`, but it must be one of: no, fp16. Did you mean `fp16`?"
    )
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_wrong_value_from_elsewhere_names_that_place():
    with pytest.raises(ConfigError, match="^`--precision` is `x`, but it must be"):
        PRECISION.value_of("x", source="--precision")


@pytest.mark.parametrize(
    ("parser", "value", "text"),
    [(boolean, True, "true"), (boolean, False, "false"), (names, ("A", "B"), "A,B"), (number, 0.5, "0.5")],
)
def test_text_and_value_are_each_others_opposite(parser, value, text):
    setting = Setting("name", "VARIABLE", parser, None, "")
    assert setting.text_of(value) == text
    assert setting.value_of(text) == value


def test_choices_come_from_the_parser():
    assert PRECISION.choices == ("no", "fp16")
    assert Setting("name", "VARIABLE", boolean, None, "").choices is None


def test_settings_of_a_rule_are_named_alike_but_for_what_is_given():
    fsdp = rule("fsdp_{}", "FSDP_{}", "--fsdp_{}", "fsdp_config.fsdp_{}")
    assert fsdp("version", number, 1.0, "Version.") == Setting(
        "fsdp_version", "FSDP_VERSION", number, 1.0, "Version.", "--fsdp_version", "fsdp_config.fsdp_version"
    )
    broken = fsdp("level", number, None, "Level.", variable="F_LEVEL", flag=None)
    assert (broken.variable, broken.flag, broken.config_key) == ("F_LEVEL", None, "fsdp_config.fsdp_level")
    assert rule("{}", "ACCELERATE_{}")("level", number, None, "Level.").config_key is None


def test_columns_of_the_launcher_are_given_like_the_others():
    fsdp = rule("fsdp_{}", "FSDP_{}", needs=("fsdp",))
    assert fsdp("a", number, None, "A.").launch == LaunchColumns(needs=("fsdp",))
    assert fsdp("b", number, None, "B.", needs=(), is_secret=True).launch == LaunchColumns(is_secret=True)
