from __future__ import annotations

import copy
import json
import pickle

import pytest

from accel_state import enums
from accel_state.enums import BaseEnum, DistributedType, DynamoBackend, LoggerType, PrecisionType
from accel_state.errors import ConfigError

# Every member and value that users' code and config files may hold.
VALUES = {
    "ComputeEnvironment": "LOCAL_MACHINE AMAZON_SAGEMAKER",
    "CustomDtype": "FP8=fp8 INT4=int4 INT2=int2",
    "DDPCommunicationHookType": (
        "NO=no FP16=fp16 BF16=bf16 POWER_SGD=power_sgd BATCHED_POWER_SGD=batched_power_sgd"
    ),
    "DistributedType": (
        "NO MULTI_CPU MULTI_GPU MULTI_NPU MULTI_MLU MULTI_SDAA MULTI_MUSA MULTI_XPU DEEPSPEED FSDP XLA "
        "MEGATRON_LM MULTI_HPU MULTI_NEURON"
    ),
    "DynamoBackend": (
        "NO EAGER AOT_EAGER INDUCTOR AOT_TS_NVFUSER NVPRIMS_NVFUSER CUDAGRAPHS OFI FX2TRT ONNXRT TENSORRT "
        "AOT_TORCHXLA_TRACE_ONCE TORCHXLA_TRACE_ONCE TVM HPU_BACKEND NEURON"
    ),
    "FP8BackendType": "NO TE MSAMP AO",
    "LoggerType": (
        "ALL=all AIM=aim TENSORBOARD=tensorboard WANDB=wandb TRACKIO=trackio COMETML=comet_ml MLFLOW=mlflow "
        "CLEARML=clearml DVCLIVE=dvclive SWANLAB=swanlab"
    ),
    "PrecisionType": "NO=no FP8=fp8 FP16=fp16 BF16=bf16",
    "RNGType": (
        "TORCH=torch CUDA=cuda MLU=mlu SDAA=sdaa MUSA=musa NPU=npu XLA=xla XPU=xpu HPU=hpu NEURON=neuron "
        "GENERATOR=generator"
    ),
    "SageMakerDistributedType": "NO DATA_PARALLEL MODEL_PARALLEL",
}
ALL = [getattr(enums, name) for name in VALUES]
MEMBERS = [member for kind in ALL for member in kind]


@pytest.mark.parametrize("name", VALUES)
def test_members_and_values_are_those_that_users_know(name):
    pairs = [word.partition("=") for word in VALUES[name].split()]
    wanted = {key: value or key for key, _, value in pairs}
    assert {member.name: member.value for member in getattr(enums, name)} == wanted


def test_no_enum_is_missing_in_this_test():
    defined = {
        name for name, kind in vars(enums).items() if isinstance(kind, type) and issubclass(kind, BaseEnum)
    }
    assert defined - {"BaseEnum"} == set(VALUES)


@pytest.mark.parametrize("member", MEMBERS, ids=repr)
def test_a_member_is_its_string_for_every_purpose(member):
    assert member == member.value
    assert member.value == member
    assert {member.value: "found"}[member] == "found"
    assert str(member) == f"{member}" == member.value
    assert json.dumps([member]) == json.dumps([member.value])
    assert type(member)(member.value) is member


@pytest.mark.parametrize("member", [DistributedType.FSDP, LoggerType.COMETML])
def test_a_member_stays_itself_through_pickle_and_copy(member):
    assert pickle.loads(pickle.dumps(member)) is member
    assert copy.deepcopy(member) is member


def test_in_takes_values_and_members_and_refuses_others():
    assert "bf16" in PrecisionType
    assert PrecisionType.BF16 in PrecisionType
    assert "BF16" not in PrecisionType
    assert None not in PrecisionType
    assert 3 not in PrecisionType
    assert [] not in PrecisionType


def test_list_gives_the_values_in_order():
    assert PrecisionType.list() == ["no", "fp8", "fp16", "bf16"]
    assert all(type(value) is str for value in DynamoBackend.list())


def test_an_unknown_value_is_refused_with_the_known_ones():
    with pytest.raises(
        ConfigError, match="`fp15` is not a valid PrecisionType. Choose one of: no, fp8, fp16, bf16"
    ):
        PrecisionType("fp15")
