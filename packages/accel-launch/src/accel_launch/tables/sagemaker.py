"""Settings of a job on Amazon SageMaker. Credentials are never read from or written to a file."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import text

TITLE = "SageMaker"

SETTINGS = (
    Setting(
        "aws_access_key_id",
        "",
        text,
        None,
        "Key to sign in with; better leave it to a profile or the environment.",
        flag="--aws_access_key_id",
    ),
    Setting(
        "aws_secret_access_key",
        "",
        text,
        None,
        "Secret that belongs to it.",
        flag="--aws_secret_access_key",
    ),
    Setting(
        "sagemaker_instance_type",
        "",
        text,
        None,
        "Kind of machine, such as `ml.p3.2xlarge`.",
        config_key="ec2_instance_type",
    ),
    Setting(
        "sagemaker_role",
        "",
        text,
        None,
        "IAM role that the job runs as.",
        config_key="iam_role_name",
    ),
    Setting(
        "sagemaker_image_uri",
        "",
        text,
        None,
        "Container to run in.",
        config_key="image_uri",
    ),
    Setting(
        "sagemaker_profile",
        "",
        text,
        None,
        "Profile of the AWS credentials.",
        config_key="profile",
    ),
    Setting(
        "sagemaker_region",
        "",
        text,
        "us-east-1",
        "Region.",
        config_key="region",
    ),
    Setting(
        "sagemaker_job_name",
        "",
        text,
        "accelerate-sagemaker-1",
        "Start of the job's name.",
        config_key="base_job_name",
    ),
    Setting(
        "sagemaker_pytorch_version",
        "",
        text,
        "1.10.2",
        "Version of PyTorch.",
        config_key="pytorch_version",
    ),
    Setting(
        "sagemaker_transformers_version",
        "",
        text,
        "4.17.0",
        "Version of transformers.",
        config_key="transformers_version",
    ),
    Setting(
        "sagemaker_py_version",
        "",
        text,
        "py38",
        "Version of Python.",
        config_key="py_version",
    ),
    Setting(
        "sagemaker_inputs_file",
        "",
        text,
        None,
        "File with the input channels, one `NAME<tab>PLACE` per line.",
        config_key="sagemaker_inputs_file",
    ),
    Setting(
        "sagemaker_metrics_file",
        "",
        text,
        None,
        "File with the metrics, one `NAME<tab>PATTERN` per line.",
        config_key="sagemaker_metrics_file",
    ),
)
