from __future__ import annotations

import pytest

from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ({"config": {"distributed_type": "FSDP"}}, "FSDP"),
        ({"config": {"distributed_type": "TPU"}}, "XLA"),
        ({"config": {"distributed_type": False}}, None),  # a bare NO in YAML
        ({"config": {"distributed_type": "FSDP"}, "flags": {"use_deepspeed": "true"}}, "DEEPSPEED"),
        ({"config": {"distributed_type": "FSDP"}, "flags": {"multi_gpu": "true"}}, None),
        ({"config": {"distributed_type": "FSDP"}, "environ": {"ACCELERATE_USE_FSDP": "false"}}, None),
        ({"environ": {"ACCELERATE_USE_MEGATRON_LM": "true"}}, "MEGATRON_LM"),
        ({"environ": {"ACCELERATE_USE_FSDP": "true"}, "flags": {"tpu": "true"}}, "XLA"),
        (
            {"config": {"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "DATA_PARALLEL"}},
            "AMAZON_SAGEMAKER",
        ),
    ],
)
def test_flag_before_environment_before_config_file(request_for, given, engine):
    assert request_for(**given).engine == engine


def test_the_ranks_get_the_variables_of_one_engine_only(request_for):
    request = request_for(environ={"ACCELERATE_USE_FSDP": "true"}, flags={"use_deepspeed": "true"})
    environ = request.environ()
    assert (environ["ACCELERATE_USE_DEEPSPEED"], environ["ACCELERATE_USE_FSDP"]) == ("true", "false")


def test_an_engine_of_the_config_file_is_switched_on(request_for):
    environ = request_for(config={"distributed_type": "FSDP", "fsdp_config.fsdp_version": 2}).environ()
    assert {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}.items() <= environ.items()


def test_sizes_in_the_config_file_switch_the_mesh_on(request_for):
    environ = request_for(config={"parallelism_config.parallelism_config_tp_size": 2}).environ()
    assert environ["ACCELERATE_USE_PARALLELISM_CONFIG"] == "true"


def test_a_hostfile_for_mpirun_switches_it_on(request_for):
    assert request_for(flags={"mpirun_hostfile": "~/hosts"}).value("use_mpirun") is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flags": {"use_fsdp": "true", "tpu": "true"}}, "`--use_fsdp` and `--tpu` contradict each other"),
        (
            {"config": {"distributed_type": "FDSP"}},
            "`distributed_type` in `config.yaml` is `FDSP`.*Did you mean `FSDP`",
        ),
        (
            {"config": {"compute_environment": "MOON"}},
            "`compute_environment` .* must be one of: LOCAL_MACHINE",
        ),
        (
            {"config": {"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "FSDP"}},
            "must be one of: NO, DATA_PARALLEL, MODEL_PARALLEL",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(request_for, given, message):
    with pytest.raises(ConfigError, match=message):
        request_for(**given)


@pytest.mark.parametrize(
    ("given", "backend"),
    [
        ({"config": {"num_machines": 2, "same_network": False}}, "c10d"),
        ({"config": {"num_machines": 2, "same_network": True}}, "static"),
        ({"config": {"num_machines": 2, "same_network": False, "rdzv_backend": "static"}}, "static"),
        ({"config": {"num_machines": 2, "same_network": False, "rdzv_backend": "etcd"}}, "etcd"),
        ({"config": {"num_machines": 2, "same_network": False}, "flags": {"same_network": "true"}}, "static"),
        ({"config": {"num_machines": 1, "same_network": False}}, "static"),
    ],
)
def test_machines_on_several_networks_meet_elastically_unless_configured_otherwise(
    request_for, given, backend
):
    assert request_for(**given).value("rdzv_backend") == backend
