import pytest

from accel_backends.plugins import fsdp_constants

DOCUMENTED = {
    "FSDP_SHARDING_STRATEGY": [
        "FULL_SHARD",
        "SHARD_GRAD_OP",
        "NO_SHARD",
        "HYBRID_SHARD",
        "HYBRID_SHARD_ZERO2",
    ],
    "FSDP_AUTO_WRAP_POLICY": ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"],
    "FSDP_BACKWARD_PREFETCH": ["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"],
    "FSDP_STATE_DICT_TYPE": ["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"],
    "FSDP2_STATE_DICT_TYPE": ["SHARDED_STATE_DICT", "FULL_STATE_DICT"],
    "FSDP_MODEL_NAME": "pytorch_model_fsdp",
    "FSDP_PYTORCH_VERSION": "2.1.0.a0+32f93b1",
    "FSDP2_PYTORCH_VERSION": "2.6.0",
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_constant_has_its_documented_value(name):
    assert getattr(fsdp_constants, name) == DOCUMENTED[name]
