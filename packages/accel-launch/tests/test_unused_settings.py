from __future__ import annotations

import pytest

from accel_launch.launchers.selection import BUILT_IN
from accel_launch.options import OPTIONS
from accel_launch.unused_settings import CONDITIONS, unused_settings
from accel_state.environment.settings import IN_PLACE_OF_IPEX


@pytest.mark.parametrize(
    ("flags", "sentences"),
    [
        ({"fsdp_version": "2"}, ["`--fsdp_version` has no effect without `--use_fsdp`."]),
        ({"fsdp_version": "2", "use_fsdp": "true"}, []),
        (
            {"use_fsdp": "true", "fsdp_min_num_params": "5", "fsdp_auto_wrap_policy": "NO_WRAP"},
            ["`--fsdp_min_num_params` has no effect without `--fsdp_auto_wrap_policy SIZE_BASED_WRAP`."],
        ),
        ({"deepspeed_zero_stage": "3"}, ["`--zero_stage` has no effect without `--use_deepspeed`."]),
        (
            {"megatron_lm_tp_degree": "2"},
            ["`--megatron_lm_tp_degree` has no effect without `--use_megatron_lm`."],
        ),
        (
            {"parallelism_pp_schedule": "gpipe"},
            ["`--parallelism_config_pp_schedule` has no effect without `--use_parallelism_config`."],
        ),
        ({"fp8_margin": "2"}, ["`--fp8_margin` has no effect without `--mixed_precision fp8`."]),
        (
            {"fp8_margin": "2", "mixed_precision": "fp8", "fp8_backend": "AO"},
            ["`--fp8_margin` has no effect without `--fp8_backend te`."],
        ),
        ({"dynamo_mode": "max-autotune"}, ["`--dynamo_mode` has no effect without `--dynamo_backend`."]),
        ({"gpu_ids": "0", "use_cpu": "true"}, ["`--gpu_ids` has no effect on the CPU."]),
        ({"master_addr": "10.0.0.1"}, ["`--main_process_ip` has no effect on one machine."]),
        ({"master_addr": "10.0.0.1", "num_machines": "2"}, []),
        ({"machine_rank": "0", "num_machines": "1"}, []),
        ({"master_addr": "10.0.0.1", "slurm": "true"}, []),
        (
            {"deepspeed_hostfile": "hosts", "use_deepspeed": "true"},
            ["`--deepspeed_hostfile` has no effect on one machine."],
        ),
        (
            {"monitor_interval": "2", "num_processes": "2"},
            ["`--monitor_interval` has no effect where machines do not meet by `--rdzv_backend`."],
        ),
        ({"monitor_interval": "2", "max_restarts": "1", "num_machines": "2", "master_addr": "h"}, []),
        ({"ssh_options": "-p 22"}, ["`--ssh_options` has no effect without `--hosts` or `--hostfile`."]),
        ({"mpirun_ccl": "2"}, ["`--mpirun_ccl` has no effect without `--use_mpirun`."]),
        ({"slurm_array": "0-3"}, ["`--slurm_array` has no effect without `--slurm`."]),
        ({"slurm_array": "0-3", "launcher": "slurm"}, []),
        ({"mpirun_ccl": "2", "launcher": "mpi"}, []),
        (
            {"hosts": "a", "ssh_options": "-p 22", "launcher": "local"},
            [
                "`--hosts` has no effect with this `--launcher`.",
                "`--ssh_options` has no effect with this `--launcher`.",
            ],
        ),
        ({"ray_wait_s": "5"}, ["`--ray_wait_s` has no effect without `--launcher ray`."]),
        ({"gpu_ids": "0", "launcher": "ray"}, ["`--gpu_ids` has no effect on Ray."]),
        ({"report": "x", "launcher": "kubernetes"}, ["`--report` has no effect on Kubernetes."]),
        ({"tpu_vm": "a,b"}, ["`--vm` has no effect without `--tpu`."]),
        ({"tpu_vm": "a,b", "tpu": "true"}, ["`--vm` has no effect without `--tpu_cluster`."]),
        ({"tpu_vm": "a,b", "tpu": "true", "tpu_cluster": "true"}, []),
        ({"downcast_bf16": "true", "tpu": "true"}, ["`--downcast_bf16` has no effect without bf16."]),
        ({"num_machines": "2", "tpu": "true"}, ["`--num_machines` has no effect on TPUs."]),
        ({"gpu_ids": "0", "tpu": "true"}, ["`--gpu_ids` has no effect on TPUs."]),
        (
            {"max_restarts": "1", "use_mpirun": "true"},
            ["`--max_restarts` has no effect where another program starts the ranks."],
        ),
        ({"same_network": "true"}, []),
        ({"aws_access_key_id": "x"}, ["`--aws_access_key_id` has no effect outside of SageMaker."]),
        ({"ipex": "true"}, [f"`--ipex` has no effect any more: {IN_PLACE_OF_IPEX}."]),
        ({"use_xpu": "true"}, ["`--use_xpu` has no effect any more: XPUs are found without it."]),
        (
            {"mixed_precision": "fp8", "fp8_backend": "TE", "fp8_opt_level": "O1"},
            ["`--fp8_opt_level` has no effect any more: MS-AMP needs torch 2.1."],
        ),
        ({}, []),
    ],
)
def test_a_flag_unused_settings_is_named_with_what_it_lacks(request_for, flags, sentences):
    assert unused_settings(request_for(flags=flags, gpus=("0",))) == sentences


@pytest.mark.parametrize(
    ("config", "sentences"),
    [
        ({"fsdp_config.fsdp_version": 2, "distributed_type": "FSDP"}, []),
        (
            {"fsdp_config.fsdp_version": 2},
            ["`fsdp_config.fsdp_version` in `config.yaml` has no effect without `--use_fsdp`."],
        ),
        (
            {"ipex_config.ipex": True},
            [f"`ipex_config.ipex` in `config.yaml` has no effect any more: {IN_PLACE_OF_IPEX}."],
        ),
        ({"ipex_config.ipex": False}, []),
        ({"tpu_zone": "europe"}, ["`tpu_zone` in `config.yaml` has no effect without `--tpu`."]),
        ({"tpu_use_sudo": False, "tpu_env": [], "downcast_bf16": "no", "gpu_ids": "all"}, []),
        ({"parallelism_config.parallelism_config_tp_size": 2}, []),  # sizes in the file are use enough
        ({"commands": ["ls"], "command_file": "x"}, []),  # of `accel tpu-config`
    ],
)
def test_a_key_unused_settings_is_named_unless_it_requests_nothing(request_for, config, sentences):
    assert unused_settings(request_for(config=config)) == sentences


def test_what_starts_ranks_here_has_no_effect_at_sagemaker(request_for):
    config = {"compute_environment": "AMAZON_SAGEMAKER", "num_machines": 2}
    flags = {"num_processes": "4", "master_port": "1", "report": "x", "mixed_precision": "bf16"}
    assert unused_settings(request_for(flags=flags, config=config)) == [
        "`--num_processes` has no effect on SageMaker.",
        "`--main_process_port` has no effect on SageMaker.",
        "`--report` has no effect on SageMaker.",
    ]


def test_options_of_a_job_are_not_named_again_inside_it(request_for):
    config = {"slurm_config.slurm_options": "--partition=gpu"}
    assert unused_settings(request_for(config=config)) == [
        "`slurm_config.slurm_options` in `config.yaml` has no effect without `--slurm`."
    ]
    assert unused_settings(request_for(config=config, environ={"SLURM_JOB_ID": "7"})) == []


def test_the_environment_is_not_judged(request_for):
    assert unused_settings(request_for(environ={"FSDP_VERSION": "2"})) == []


def test_the_tables_name_conditions_and_settings_that_exist():
    needed = {name for setting in OPTIONS for name in setting.launch.needs}
    assert needed == set(CONDITIONS)
    assert {name for row in BUILT_IN.values() for name in row.uses} < needed
    unused = {name for row in BUILT_IN.values() for name in row.unused}
    assert unused < {setting.name for setting in OPTIONS}


def test_gpus_that_a_scheduler_chose_win_over_the_file_and_it_is_reported(request_for):
    environ = {"CUDA_VISIBLE_DEVICES": "4,5"}
    (sentence,) = unused_settings(request_for(environ=environ, config={"gpu_ids": "0,1"}))
    assert sentence.startswith(
        "`gpu_ids` in `config.yaml` is `0,1`, but the variable `CUDA_VISIBLE_DEVICES` says"
    )
    assert unused_settings(request_for(environ=environ, config={"gpu_ids": "all"})) == []
