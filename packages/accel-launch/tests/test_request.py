from __future__ import annotations

import pytest

from accel_state.errors import ConfigError

GPUS = ("0", "1", "2")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 1),
        ({"gpus": GPUS}, 3),
        ({"gpus": GPUS, "flags": {"use_cpu": "true"}}, 1),
        ({"gpus": GPUS, "flags": {"num_processes": "2"}}, 2),
        ({"gpus": GPUS, "flags": {"gpu_ids": "0,2"}}, 2),
        ({"gpus": GPUS, "config": {"gpu_ids": "all"}}, 3),
        ({"gpus": GPUS, "flags": {"gpu_ids": "all"}}, 3),
        ({"gpus": GPUS, "flags": {"gpu_ids": "all"}, "config": {"gpu_ids": "1"}}, 3),
        ({"flags": {"gpu_ids": "all"}}, 1),
        ({"flags": {"gpu_ids": "0,1"}}, 2),
        ({"gpus": GPUS, "config": {"num_processes": -1}}, 3),
        ({"flags": {"use_cpu": "true", "num_processes": "2"}}, 2),
        ({"environ": {"ACCELERATE_NUM_PROCESSES": "5"}}, 5),
        ({"config": {"num_processes": 4}}, 4),
    ],
)
def test_number_of_processes(request_for, given, expected):
    assert request_for(**given).num_processes == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flags": {"gpu_ids": "0,7"}, "gpus": GPUS}, "`--gpu_ids` is `0,7`, but the GPUs .* are: 0, 1, 2"),
        ({"flags": {"num_processes": "999999999"}}, "999999999 processes .* at most 131072"),
        ({"flags": {"gpu_ids": "0", "num_processes": "2"}, "gpus": GPUS}, "names only 1 of its GPUs"),
        ({"config": {"num_machines": 0}}, "`num_machines` in `config.yaml` is `0`"),
        ({"config": {"num_machines": "two"}}, "whole number"),
    ],
)
def test_what_contradicts_the_machine_is_refused(request_for, given, message):
    with pytest.raises(ConfigError, match=message):
        request_for(**given)


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        ({}, None),
        ({"distributed_type": "NO", "compute_environment": "LOCAL_MACHINE"}, None),
        ({"distributed_type": "MULTI_GPU"}, None),
        ({"distributed_type": "MULTI_CPU"}, None),
        ({"distributed_type": "FSDP"}, "FSDP"),
        ({"distributed_type": "DEEPSPEED"}, "DEEPSPEED"),
        ({"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "NO"}, "AMAZON_SAGEMAKER"),
    ],
)
def test_engine_is_read_from_the_config_file(request_for, config, engine):
    assert request_for(config=config).engine == engine


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("script", ("python", "-X", "dev", "-u", "train.py", "--lr", "1")),
        ("module", ("python", "-X", "dev", "-u", "-m", "train.py", "--lr", "1")),
        ("executable", ("train.py", "--lr", "1")),
    ],
)
def test_program_is_the_command_line_of_one_rank(request_for, kind, expected):
    request = request_for("train.py", "--lr", "1", kind=kind, interpreter=("python", "-X", "dev"))
    assert request.program() == expected


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        ({"mixed_precision": "bf16"}, {"ACCELERATE_MIXED_PRECISION": "bf16"}),
        ({"use_cpu": "true"}, {"ACCELERATE_USE_CPU": "true"}),
        ({"debug_mode": "true"}, {"ACCELERATE_DEBUG_MODE": "true"}),
        ({"gradient_accumulation_steps": "4"}, {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}),
        ({"num_cpu_threads_per_process": "3"}, {"OMP_NUM_THREADS": "3"}),
        ({"cpu_affinity": "true"}, {"ACCELERATE_CPU_AFFINITY": "true"}),
        ({"dynamo_backend": "inductor"}, {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}),
        ({"dynamo_mode": "max-autotune"}, {"ACCELERATE_DYNAMO_MODE": "max-autotune"}),
        ({"dynamo_use_dynamic": "true"}, {"ACCELERATE_DYNAMO_USE_DYNAMIC": "true"}),
        ({"dynamo_use_fullgraph": "true"}, {"ACCELERATE_DYNAMO_USE_FULLGRAPH": "true"}),
        (
            {"dynamo_use_regional_compilation": "true"},
            {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true"},
        ),
        ({"gpu_ids": "0,2"}, {"CUDA_VISIBLE_DEVICES": "0,2"}),
        ({"gpu_ids": "all"}, {}),
        ({"num_processes": "2", "master_port": "29501"}, {}),
        ({}, {}),
    ],
)
def test_each_flag_reaches_the_ranks_as_its_variable_and_defaults_stay_unsaid(request_for, flags, variables):
    assert request_for(flags=flags, gpus=GPUS).environ() == variables


@pytest.mark.parametrize(
    ("environ", "variables"),
    [({}, {"PYTHONUNBUFFERED": "1"}), ({"PYTHONUNBUFFERED": ""}, {}), ({"PYTHONUNBUFFERED": "x"}, {})],
)
def test_a_program_is_not_buffered_unless_the_variable_decides(request_for, environ, variables):
    assert request_for(kind="executable", environ=environ).environ() == variables


FSDP_ALWAYS = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_MIN_NUM_PARAMS": "100000000",
    "FSDP_OFFLOAD_PARAMS": "false",
}


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (
            {},
            {
                "FSDP_VERSION": "1",
                "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
                "FSDP_FORWARD_PREFETCH": "false",
                "FSDP_SYNC_MODULE_STATES": "true",
                "FSDP_USE_ORIG_PARAMS": "true",
            },
        ),
        (
            {"fsdp_version": "2"},
            {
                "FSDP_VERSION": "2",
                "FSDP_RESHARD_AFTER_FORWARD": "true",
                "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
            },
        ),
    ],
)
def test_fsdp_by_a_flag_means_what_it_means_to_accelerate(request_for, flags, variables):
    assert request_for(flags={"use_fsdp": "true"} | flags).environ() == FSDP_ALWAYS | variables


@pytest.mark.parametrize(
    ("flags", "absent"),
    [
        ({"fsdp_sync_module_states": "false"}, {"FSDP_CPU_RAM_EFFICIENT_LOADING"}),
        ({"fsdp_reshard_after_forward": "SHARD_GRAD_OP"}, {"FSDP_SHARDING_STRATEGY"}),
        ({"fsdp_version": "2", "fsdp_sharding_strategy": "SHARD_GRAD_OP"}, {"FSDP_RESHARD_AFTER_FORWARD"}),
        ({"fsdp_version": "2"}, {"FSDP_USE_ORIG_PARAMS", "FSDP_SYNC_MODULE_STATES", "FSDP_FORWARD_PREFETCH"}),
    ],
)
def test_no_default_of_fsdp_contradicts_what_was_given(request_for, flags, absent):
    assert request_for(flags={"use_fsdp": "true"} | flags).environ().keys().isdisjoint(absent)


@pytest.mark.parametrize("given", ["RANK=7", "MASTER_ADDR=10.0.0.1", "A=1,WORLD_SIZE=2"])
def test_what_the_launcher_gives_each_rank_is_not_for_env(request_for, given):
    with pytest.raises(ConfigError, match="would give all ranks what the launcher gives each"):
        request_for(flags={"env": given}).named_variables()
