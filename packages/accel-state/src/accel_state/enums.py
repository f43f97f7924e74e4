"""Names that users and config files know, as enums whose members are strings."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

from accel_state.errors import ConfigError


class EnumWithContains(enum.EnumMeta):
    """Allows plain values in ``value in SomeEnum``, on every Python version."""

    def __contains__(cls, member: object) -> bool:
        return member in cls._value2member_map_ if isinstance(member, str) else False


class BaseEnum(enum.StrEnum, metaclass=EnumWithContains):
    """A string enum: a member equals, hashes and prints as its value."""

    @classmethod
    def list(cls) -> list[str]:
        """Return the values of all members, in their order."""
        return [str(member) for member in cls]

    @classmethod
    def _missing_(cls, value: object) -> BaseEnum:
        raise ConfigError(f"`{value}` is not a valid {cls.__name__}. Choose one of: {', '.join(cls.list())}.")


class DistributedType(BaseEnum):
    """The type of a distributed run, for user code; accel never branches on it."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"


class SageMakerDistributedType(BaseEnum):
    """How a SageMaker job is distributed."""

    NO = "NO"
    DATA_PARALLEL = "DATA_PARALLEL"
    MODEL_PARALLEL = "MODEL_PARALLEL"


class ComputeEnvironment(BaseEnum):
    """Where a run takes place: local machines, or a cloud service."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class PrecisionType(BaseEnum):
    """The precision of the forward pass; ``no`` is full precision."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class FP8BackendType(BaseEnum):
    """The FP8 library: Transformer Engine or torchao; MS-AMP is not supported."""

    NO = "NO"
    TE = "TE"
    MSAMP = "MSAMP"
    AO = "AO"


class CustomDtype(BaseEnum):
    """Dtypes without a `torch.dtype`."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


class RNGType(BaseEnum):
    """The random number generators whose state can be synchronized over all ranks."""

    TORCH = "torch"
    CUDA = "cuda"
    MLU = "mlu"
    SDAA = "sdaa"
    MUSA = "musa"
    NPU = "npu"
    XLA = "xla"
    XPU = "xpu"
    HPU = "hpu"
    NEURON = "neuron"
    GENERATOR = "generator"


class LoggerType(BaseEnum):
    """The experiment trackers of accel; ``all`` means every installed one."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"


class DynamoBackend(BaseEnum):
    """The backends of `torch.compile`."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"


class DDPCommunicationHookType(BaseEnum):
    """How DDP compresses gradients before the all-reduce."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


# Words that users may write in place of a member, for type checkers; an enum without such an alias has open words.
PrecisionName: TypeAlias = Literal["no", "fp8", "fp16", "bf16"]
FP8BackendName: TypeAlias = Literal["NO", "TE", "MSAMP", "AO"]
RNGName: TypeAlias = Literal[
    "torch", "cuda", "mlu", "sdaa", "musa", "npu", "xla", "xpu", "hpu", "neuron", "generator"
]
DDPCommunicationHookName: TypeAlias = Literal["no", "fp16", "bf16", "power_sgd", "batched_power_sgd"]
DynamoBackendName: TypeAlias = Literal[
    "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT",
    "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM", "HPU_BACKEND", "NEURON",
    "no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs", "ofi", "fx2trt",
    "onnxrt", "tensorrt", "aot_torchxla_trace_once", "torchxla_trace_once", "tvm", "hpu_backend", "neuron",
]  # fmt: skip
