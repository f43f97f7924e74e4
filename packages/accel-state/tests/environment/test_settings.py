from __future__ import annotations

import re

import pytest

from accel_state.environment.settings import SECTIONS, SETTINGS, find_setting, setting_of_variable
from accel_state.errors import UnknownNameError

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
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MASTER_ADDR",
    "MASTER_PORT",
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
        assert setting_of_variable(variable).variable == variable


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


def test_a_variable_that_is_none_of_ours_has_no_setting():
    assert setting_of_variable("PATH") is None
