"""Files that the questionnaire of Accelerate 1.15 wrote, and those of its guides: they load as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_launch.config.file import read_config
from accel_launch.config.writing import document_of, write_config
from accel_launch.unused_settings import unused_settings

FILES = sorted((Path(__file__).parent / "peer_files").glob("*.yaml"))

# file: engine, some variables of the ranks
SAID = {
    "basic": (None, {"ACCELERATE_USE_CPU": "true"}),
    "deepspeed": (
        "DEEPSPEED",
        {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
            "ACCELERATE_GRADIENT_CLIPPING": "1.0",
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
        },
    ),
    "deepspeed_file": (
        "DEEPSPEED",
        {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_MIXED_PRECISION": "fp16"},
    ),
    "fp8_msamp": (None, {"ACCELERATE_FP8_BACKEND": "MSAMP", "ACCELERATE_FP8_OPT_LEVEL": "O2"}),
    "fp8_te": (
        None,
        {
            "ACCELERATE_FP8_BACKEND": "TE",
            "ACCELERATE_FP8_AMAX_HISTORY_LEN": "1024",
            "ACCELERATE_FP8_AMAX_COMPUTE_ALGO": "max",
            "FP8_OVERRIDE_FPROP": "false",
            "FP8_OVERRIDE_WGRAD": "false",
        },
    ),
    "fsdp1": (
        "FSDP",
        {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
            "FSDP_RESHARD_AFTER_FORWARD": "FULL_SHARD",
            "FSDP_USE_ORIG_PARAMS": "true",
        },
    ),
    "fsdp2": (
        "FSDP",
        {
            "FSDP_VERSION": "2",
            "FSDP_RESHARD_AFTER_FORWARD": "true",
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2",
        },
    ),
    "fp8_short_names": (
        None,
        {"ACCELERATE_FP8_AMAX_HISTORY_LEN": "512", "ACCELERATE_FP8_AMAX_COMPUTE_ALGO": "max"},
    ),
    "fsdp_guide": (
        "FSDP",
        {
            "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
            "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
            "FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer",
        },
    ),
    "ipex": (None, {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}),
    "megatron": ("MEGATRON_LM", {"ACCELERATE_USE_MEGATRON_LM": "true", "MEGATRON_LM_TP_DEGREE": "2"}),
    "mpi": (None, {"ACCELERATE_USE_CPU": "true"}),
    "multi_gpu": (None, {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}),
    "multi_node": (None, {}),
    "one_process": (None, {"ACCELERATE_MIXED_PRECISION": "no"}),
    "sagemaker_data_parallel": ("AMAZON_SAGEMAKER", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
    "tpu_pod": ("XLA", {"ACCELERATE_MIXED_PRECISION": "bf16", "TPU_NAME": "my-pod"}),
    "sagemaker": ("AMAZON_SAGEMAKER", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
}


def test_every_file_is_looked_at():
    assert [path.stem for path in FILES] == sorted(SAID)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_means_what_it_says(request_for, path):
    engine, variables = SAID[path.stem]
    config = read_config(path)
    request = request_for(config=config.values, gpus=("0", "1", "2", "3"))
    assert request.engine == engine
    assert variables.items() <= request.environ().items()
    said = [sentence for sentence in unused_settings(request) if "any more" not in sentence]
    assert said == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_writing_it_again_keeps_what_it_specifies(tmp_path, path):
    before = read_config(path).values
    for name in ("again.yaml", "again.json"):
        write_config(tmp_path / name, document_of(before))
        after = read_config(tmp_path / name).values
        assert {key: after[key] for key in before if key != "downcast_bf16"} == {
            key: value for key, value in before.items() if key != "downcast_bf16"
        }
