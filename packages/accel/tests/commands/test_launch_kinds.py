import sys

import pytest

from accel.commands.config.objects import SageMakerConfig
from accel.commands.launch_kinds import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_sagemager_args_inputs,
    prepare_simple_launcher_cmd_env,
    prepare_tpu,
    sagemaker_launcher,
    simple_launcher,
    tpu_launcher,
    tpu_pod_launcher,
    validate_launch_command,
)
from accel.commands.parsing import launch_command_parser
from accel_state.enums import ComputeEnvironment, SageMakerDistributedType
from accel_state.errors import ConfigError

SEVERAL = ["--num_machines", "2", "--num_processes", "4", "--deepspeed_hostfile", "hosts"]


def prepared(monkeypatch, tmp_path, *flags, prepare=prepare_deepspeed_cmd_env):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return prepare(launch_command_parser().parse_args([*flags, "train.py", "--lr", "1"]))


def test_on_one_machine_the_command_is_that_of_rank_0(monkeypatch, tmp_path):
    command, environ = prepared(monkeypatch, tmp_path, "--cpu", "--num_processes", "2", "--zero_stage", "3")
    assert command[-3:] == ["train.py", "--lr", "1"]
    assert environ["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert (environ["RANK"], environ["WORLD_SIZE"]) == ("0", "2")
    assert environ["HF_HOME"] == str(tmp_path / "hf")


def test_on_several_machines_it_is_deepspeeds_runner(monkeypatch, tmp_path):
    command, environ = prepared(monkeypatch, tmp_path, *SEVERAL)
    assert "deepspeed.launcher.runner" in command
    assert "--num_nodes=2" in command
    assert environ["ACCELERATE_USE_DEEPSPEED"] == "true"


def test_a_simple_launch_is_the_script_with_its_settings(monkeypatch, tmp_path):
    command, environ = prepared(
        monkeypatch, tmp_path, "--cpu", "--mixed_precision", "bf16", prepare=prepare_simple_launcher_cmd_env
    )
    python_options = command[1:-3]  # those of the Python that runs the tests, such as -u under xdist
    assert command == [sys.executable, *python_options, "train.py", "--lr", "1"]
    assert all(option.startswith("-") and option != "-m" for option in python_options)
    assert (environ["ACCELERATE_MIXED_PRECISION"], environ["ACCELERATE_USE_CPU"]) == ("bf16", "true")


def test_the_environment_of_several_gpus_is_that_of_rank_0(monkeypatch, tmp_path):
    flags = ("--num_processes", "2", "--mixed_precision", "bf16")
    environ = prepared(monkeypatch, tmp_path, *flags, prepare=prepare_multi_gpu_env)
    found = [environ[name] for name in ("RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION")]
    assert found == ["0", "2", "bf16"]


def test_a_simple_launch_runs_the_script(monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    done = str(tmp_path / "done")
    simple_launcher(launch_command_parser().parse_args(["--cpu", "--num_processes", "1", str(script), done]))
    assert (tmp_path / "done").exists()


def test_a_launch_on_a_tpu_adds_what_xla_reads(monkeypatch, tmp_path):
    flags = ("--mixed_precision", "bf16", "--downcast_bf16")
    args, environ = prepared(
        monkeypatch, tmp_path, *flags, prepare=lambda args: prepare_tpu(args, {"A": "1"})
    )
    assert args.tpu
    assert environ == {"A": "1", "PJRT_DEVICE": "TPU", "XLA_DOWNCAST_BF16": "1"}


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        (tpu_launcher, "`--no_python` cannot go with `--tpu`"),
        (tpu_pod_launcher, "`--tpu_cluster` needs `--tpu_name`"),
    ],
)
def test_launches_on_tpus_are_those_of_their_flags(monkeypatch, tmp_path, launcher, message):
    flags = ("--no_python",) if launcher is tpu_launcher else ()
    with pytest.raises(ConfigError, match=message):
        prepared(monkeypatch, tmp_path, *flags, prepare=launcher)


def test_arguments_are_completed_by_the_config_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "true")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "c.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nuse_cpu: true\n"
        "fsdp_config: {fsdp_version: 2}\n"
    )
    args = launch_command_parser().parse_args(["--config_file", "c.yaml", "--num_processes", "2", "train.py"])
    same, config, has_precision = validate_launch_command(args)
    assert same is args
    assert (args.num_processes, args.fsdp_version, args.use_fsdp, args.debug_mode) == (2, 2, True, True)
    assert (args.mixed_precision, has_precision) == ("bf16", True)
    assert config.num_processes == 8
    command, environ = prepare_simple_launcher_cmd_env(args)
    assert command[-1] == "train.py"
    assert environ["FSDP_VERSION"] == "2"


def test_without_a_config_file_there_is_none(monkeypatch, tmp_path):
    assert prepared(monkeypatch, tmp_path, "--cpu", prepare=validate_launch_command)[1:] == (None, False)


def sagemaker_config(**settings):
    return SageMakerConfig(
        compute_environment=ComputeEnvironment.AMAZON_SAGEMAKER,
        distributed_type=SageMakerDistributedType.NO,
        mixed_precision="bf16",
        use_cpu=False,
        debug=False,
        ec2_instance_type="ml.p3.2xlarge",
        iam_role_name="role",
        image_uri="me/image:1",
        **settings,
    )


def test_a_job_on_sagemaker_is_what_its_estimator_gets(monkeypatch, tmp_path):
    (tmp_path / "inputs.tsv").write_text("train\ts3://bucket/train\n")
    config = sagemaker_config(
        num_machines=2, sagemaker_inputs_file="inputs.tsv", additional_args={"max_run": 3}
    )
    estimator, inputs = prepared(
        monkeypatch, tmp_path, prepare=lambda args: prepare_sagemager_args_inputs(config, args)
    )
    assert inputs == {"train": "s3://bucket/train"}
    assert (estimator["entry_point"], estimator["hyperparameters"]) == ("train.py", {"lr": 1})
    assert (estimator["instance_count"], estimator["role"], estimator["max_run"]) == (2, "role", 3)
    assert estimator["environment"]["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_a_job_without_inputs_has_none(monkeypatch, tmp_path):
    prepare = lambda args: prepare_sagemager_args_inputs(sagemaker_config(), args)
    assert prepared(monkeypatch, tmp_path, prepare=prepare)[1] is None


def test_a_job_on_sagemaker_is_submitted(monkeypatch, tmp_path):
    submitted = []
    monkeypatch.setattr(
        "accel_launch.launchers.sagemaker.submit", lambda job, credentials: submitted.append(job) or 0
    )
    prepared(monkeypatch, tmp_path, prepare=lambda args: sagemaker_launcher(sagemaker_config(), args))
    assert [job["estimator"]["entry_point"] for job in submitted] == ["train.py"]
