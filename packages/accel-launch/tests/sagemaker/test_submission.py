"""A full launch with Amazon's SDK, against moto's server on loopback."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import urllib.request
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_launch.installation import PACKAGES
from accel_launch.sagemaker import submission
from accel_state.errors import NotAvailableError

KEY, SECRET = "AKIAFAKEFAKEFAKEFAKE", "a-secret-that-must-not-be-written"
SDK_SETTINGS = """\
SchemaVersion: '1.0'
SageMaker: {PythonSDK: {Modules: {Session: {DefaultS3Bucket: a-bucket-of-ours}}}}
"""
CONFIG = """\
compute_environment: AMAZON_SAGEMAKER
distributed_type: DATA_PARALLEL
ec2_instance_type: ml.p3.16xlarge
iam_role_name: accelerate_sagemaker_execution_role
mixed_precision: fp16
num_machines: 2
region: us-east-1
sagemaker_inputs_file: inputs.tsv
additional_args: {max_run: 3600, enable_network_isolation: true}
"""


def test_without_the_sdk_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sagemaker", None)
    with pytest.raises(
        NotAvailableError, match=r"needs the package `sagemaker`.*pip install boto3 'sagemaker<3'"
    ):
        submission.submit({}, {})


@pytest.fixture
def amazon(tmp_path, monkeypatch):
    """Amazon on loopback: returns a session of `boto3` that talks to it."""
    import boto3
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"")  # it remembers within a process
    # With a bucket named in the SDK's own settings it need not ask who we are, which it does at a fixed address.
    settings = tmp_path / "sdk.yaml"
    settings.write_text(SDK_SETTINGS)
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(settings))
    monkeypatch.chdir(tmp_path)
    for name in PACKAGES:
        (tmp_path / f"{name.replace('-', '_')}-0.2.0-py3-none-any.whl").touch()
    session = boto3.Session(aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1")
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    session.client("iam").create_role(
        RoleName="accelerate_sagemaker_execution_role", AssumeRolePolicyDocument=policy
    )
    yield session
    server.stop()


def installed_by(amazon, job) -> list[str]:
    """Return the lines of the `requirements.txt` next to the script."""
    place = json.loads(job["HyperParameters"]["sagemaker_submit_directory"])
    if not place.startswith("s3://"):  # in an isolated container it is a channel
        (place,) = (
            channel["DataSource"]["S3DataSource"]["S3Uri"]
            for channel in job["InputDataConfig"]
            if channel["ChannelName"] == "code"
        )
    bucket, _, key = place.removeprefix("s3://").partition("/")
    content = amazon.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return archive.extractfile("requirements.txt").read().decode().splitlines()


@pytest.mark.engine("sagemaker")
def test_a_launch_creates_the_job_and_keeps_the_secret(amazon, tmp_path, capfd):
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "inputs.tsv").write_text("train\ts3://bucket/train\n")
    arguments = ["--config_file", "c.yaml", "--aws_access_key_id", KEY, "--aws_secret_access_key", SECRET]
    script = ["train.py", "--epochs", "3", "--lr", "5e-5", "--fast", "False"]
    assert main(["launch", *arguments, "--dry-run", *script]) == 0
    assert main(["launch", *arguments, *script]) == 0

    client = amazon.client("sagemaker")
    (summary,) = client.list_training_jobs()["TrainingJobSummaries"]
    job = client.describe_training_job(TrainingJobName=summary["TrainingJobName"])
    assert job["TrainingJobName"].startswith("accelerate-sagemaker-1-")
    assert job["RoleArn"].endswith(":role/accelerate_sagemaker_execution_role")
    assert (job["ResourceConfig"]["InstanceType"], job["ResourceConfig"]["InstanceCount"]) == (
        "ml.p3.16xlarge",
        2,
    )
    assert job["StoppingCondition"]["MaxRuntimeInSeconds"] == 3600
    assert job["EnableNetworkIsolation"] is True
    registry, _, container = job["AlgorithmSpecification"]["TrainingImage"].partition("/")
    assert registry.endswith(".dkr.ecr.us-east-1.amazonaws.com")
    assert container.startswith("huggingface-pytorch-training:2.9.0-transformers5.3.0-gpu-py312-")
    assert [channel["ChannelName"] for channel in job["InputDataConfig"]] == [
        "train",
        "code",  # how the SDK brings the script into an isolated container
    ]
    assert installed_by(amazon, job)[0] == "./accel-0.2.0-py3-none-any.whl"
    # moto keeps no variables; `test_job.py` looks at them.
    parameters = {name: json.loads(text) for name, text in job["HyperParameters"].items()}
    assert {name: parameters[name] for name in ("epochs", "lr", "fast")} == {
        "epochs": 3,
        "lr": 5e-5,
        "fast": False,
    }
    assert parameters["sagemaker_program"] == "train.py"

    captured = capfd.readouterr()
    assert "Its model is at s3://a-bucket-of-ours/" in captured.err
    assert SECRET not in captured.out + captured.err
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.engine("sagemaker")
def test_what_amazon_refuses_is_one_line(amazon, tmp_path, capfd):
    (tmp_path / "train.py").touch()
    (tmp_path / "c.yaml").write_text(CONFIG.replace("accelerate_sagemaker_execution_role", "nobody"))
    (tmp_path / "inputs.tsv").write_text("train\ts3://bucket/train\n")
    arguments = ["--aws_access_key_id", KEY, "--aws_secret_access_key", SECRET]
    assert main(["launch", "--config_file", "c.yaml", *arguments, "train.py"]) == 1
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert last_line.startswith("error: SageMaker could not run the job: ")
    assert "nobody" in last_line


def test_only_the_submission_imports_the_sdk(monkeypatch):
    """So that a dry run, and everything else, works without it."""
    source = Path(submission.__file__).parents[1]
    users = [
        path.name
        for path in source.rglob("*.py")
        if "boto3" in path.read_text() and path.name != "submission.py"
    ]
    assert users == []
