from __future__ import annotations

from pathlib import Path

import pytest

from accel_launch.config.file import read_config
from accel_launch.installation import PACKAGES
from accel_launch.sagemaker.job import job_of
from accel_state.errors import ConfigError

PEER_FILE = Path(__file__).parents[1] / "config" / "peer_files" / "sagemaker.yaml"
BASIS = {
    "compute_environment": "AMAZON_SAGEMAKER",
    "iam_role_name": "role",
    "ec2_instance_type": "ml.p3.16xlarge",
}
OWN_IMAGE = BASIS | {"image_uri": "me/image:1"}
"""For jobs whose container has accel already."""


def test_the_full_request_of_a_file_that_accelerate_wrote(request_for, wheels):
    """But for the versions in it, with which no container runs accel."""
    config = dict(read_config(PEER_FILE).values)
    with pytest.raises(
        ConfigError, match=r"`py_version` in the config file is `py38`, but accel needs 3.11 or newer"
    ):
        job_of(request_for("code/train.py", config=config))
    for key in ("py_version", "pytorch_version", "transformers_version"):
        del config[key]
    request = request_for(str(wheels / "train.py"), "--epochs", "3", config=config)
    job = job_of(request)
    assert job.pop("requirements").startswith("./accel-0.2.0-py3-none-any.whl\n")
    assert job == {
        "profile": "default",
        "region": "us-east-1",
        "estimator": {
            "entry_point": "train.py",
            "source_dir": str(wheels),
            "hyperparameters": {"epochs": 3},
            "role": "myrole",
            "instance_type": "ml.p3.2xlarge",
            "instance_count": 1,
            "base_job_name": "accelerate-sagemaker-1",
            "py_version": "py312",
            "pytorch_version": "2.9.0",
            "transformers_version": "5.3.0",
            "debugger_hook_config": False,
            "environment": {
                "ACCELERATE_CPU_AFFINITY": "false",
                "ACCELERATE_DEBUG_MODE": "false",
                "ACCELERATE_MIXED_PRECISION": "fp16",
                "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "NO",
                "ACCELERATE_USE_CPU": "false",
                "ACCELERATE_USE_SAGEMAKER": "true",
            },
        },
        "fit": {},
    }


def test_data_parallel_on_several_machines(request_for):
    config = OWN_IMAGE | {
        "distributed_type": "DATA_PARALLEL",
        "num_machines": 2,
        "dynamo_config.dynamo_backend": "INDUCTOR",
    }
    estimator = job_of(request_for(config=config))["estimator"]
    assert estimator["distribution"] == {"torch_distributed": {"enabled": True}}
    assert estimator["instance_count"] == 2
    assert estimator["environment"]["ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE"] == "DATA_PARALLEL"
    assert estimator["environment"]["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"


def test_the_config_file_overrides_arguments_of_the_estimator(request_for):
    further = {
        "use_spot_instances": True,
        "max_wait": 86400,
        "base_job_name": "mine",
        "image_uri": "me/image:1",
    }
    config = BASIS | {"image_uri": "their/image", "additional_args": further}
    estimator = job_of(request_for(config=config))["estimator"]
    assert {name: estimator[name] for name in further} == further


def test_an_older_torch_is_refused_unless_the_container_is_ones_own(request_for):
    config = BASIS | {"pytorch_version": "2.5.1"}
    with pytest.raises(ConfigError, match=r"`pytorch_version` .* is `2.5.1`, but accel needs 2.9 or newer"):
        job_of(request_for(config=config))
    assert job_of(request_for(config=config | {"image_uri": "me/image:1"}))["estimator"]["image_uri"]


@pytest.fixture
def wheels(tmp_path) -> Path:
    """Return a folder with a wheel of each package of accel, which is the folder of the job."""
    for name in PACKAGES:
        (tmp_path / f"{name.replace('-', '_')}-0.2.0-py3-none-any.whl").touch()
    return tmp_path


def test_the_wheels_in_its_folder_are_what_a_job_installs(request_for, wheels):
    (wheels / "dist").mkdir()
    for wheel in wheels.glob("accel_d*.whl"):
        wheel.rename(wheels / "dist" / wheel.name)
    (wheels / "requirements.txt").write_text("numpy\naccelerate-like\n")
    own, other, *lines = job_of(request_for(str(wheels / "train.py"), config=BASIS))[
        "requirements"
    ].splitlines()
    assert (own, other) == ("numpy", "accelerate-like")
    assert len(lines) == len(PACKAGES)
    assert "./dist/accel_data-0.2.0-py3-none-any.whl" in lines
    assert all((wheels / line).is_file() and line.startswith("./") for line in lines)


def test_a_job_without_wheels_is_refused_with_what_to_copy(request_for, wheels):
    (wheels / "accel_ops-0.2.0-py3-none-any.whl").unlink()
    with pytest.raises(
        ConfigError, match=r"no wheels of `accel-ops` .* Copy the wheels that `python tools/dev.py"
    ):
        job_of(request_for(str(wheels / "train.py"), config=BASIS))


ALL_WHEELS = "".join(f"./{name.replace('-', '_')}-0.2.0-py3-none-any.whl\n" for name in PACKAGES)


@pytest.mark.parametrize("own", ["./accel-0.2.0-py3-none-any.whl\n", ALL_WHEELS.partition("\n")[2]])
def test_no_wheel_of_a_job_takes_its_siblings_from_an_index(request_for, wheels, own):
    (wheels / "requirements.txt").write_text(f"numpy\n{own}")
    with pytest.raises(ConfigError, match=r"but none of `accel.*look for on an index\. Name one of each, or"):
        job_of(request_for(str(wheels / "train.py"), config=BASIS))


@pytest.mark.parametrize("own", ["accel @ https://x/accel.zip\n", ALL_WHEELS, "git+https://h/accel.git\n"])
def test_the_folder_of_a_job_may_specify_where_accel_is(request_for, tmp_path, own):
    (tmp_path / "requirements.txt").write_text(own)
    assert job_of(request_for(str(tmp_path / "train.py"), config=BASIS))["requirements"] is None


def test_a_container_of_ones_own_has_accel(request_for):
    assert job_of(request_for(config=OWN_IMAGE))["requirements"] is None


@pytest.mark.parametrize(
    "own",
    [
        "accel",
        " Accel",
        "accel_launch==0.2.0",
        "accel==0.2.0",
        "accel-launch[sagemaker]>=0.1",
        "accel-data ; a",
        "accel  # x",
    ],
)
def test_no_job_installs_accel_from_an_index(request_for, wheels, own):
    (wheels / "requirements.txt").write_text(f"numpy\n{own}\n")
    with pytest.raises(ConfigError, match=r"would be installed from an index.* Name a file or an address"):
        job_of(request_for(str(wheels / "train.py"), config=BASIS))


def test_variables_of_env_are_the_jobs_but_no_secrets(request_for):
    job = job_of(
        request_for(config=OWN_IMAGE, flags={"env": "NCCL_DEBUG,A=1"}, environ={"NCCL_DEBUG": "INFO"})
    )
    environ = job["estimator"]["environment"]
    assert (environ["A"], environ["NCCL_DEBUG"]) == ("1", "INFO")
    with pytest.raises(ConfigError, match="`--env HF_TOKEN` looks like a secret"):
        job_of(request_for(config=OWN_IMAGE, flags={"env": "HF_TOKEN=hush"}))


def test_channels_and_metrics_come_from_their_files(request_for, tmp_path):
    (tmp_path / "in.tsv").write_text("train\ts3://bucket/train\n")
    (tmp_path / "metrics.tsv").write_text("loss\tloss=(.*)\n")
    files = {
        "sagemaker_inputs_file": str(tmp_path / "in.tsv"),
        "sagemaker_metrics_file": str(tmp_path / "metrics.tsv"),
    }
    job = job_of(request_for(config=OWN_IMAGE | files))
    assert job["fit"] == {"inputs": {"train": "s3://bucket/train"}}
    assert job["estimator"]["metric_definitions"] == [{"Name": "loss", "Regex": "loss=(.*)"}]


def test_variables_of_this_machine_stay_here(request_for):
    environ = {
        "OMP_NUM_THREADS": "7",
        "CUDA_VISIBLE_DEVICES": "3",
        "FSDP_VERSION": "2",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    handed_on = job_of(request_for(config=OWN_IMAGE, environ=environ))["estimator"]["environment"]
    assert handed_on.keys() & environ.keys() == {"FSDP_VERSION"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"config": BASIS | {"iam_role_name": None}}, "needs `iam_role_name` in the config file"),
        ({"config": BASIS | {"ec2_instance_type": None}}, "needs `ec2_instance_type` in the config file"),
        (
            {"config": BASIS | {"distributed_type": "MODEL_PARALLEL"}},
            "`MODEL_PARALLEL`, which has no launcher",
        ),
        ({"config": BASIS, "kind": "module"}, "a Python script, which `train.py` is not"),
        ({"config": BASIS, "kind": "executable"}, "a Python script, which `train.py` is not"),
    ],
)
def test_what_cannot_be_a_job_is_refused(request_for, given, message):
    with pytest.raises(ConfigError, match=message):
        job_of(request_for(**given))
