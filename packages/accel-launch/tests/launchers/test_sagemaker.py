from __future__ import annotations

import json

import pytest

from accel_launch.launchers.sagemaker import SageMakerLauncher
from accel_launch.launchers.selection import select_launcher
from accel_state.errors import ConfigError

CONFIG = {
    "compute_environment": "AMAZON_SAGEMAKER",
    "iam_role_name": "role",
    "ec2_instance_type": "ml.p3.2xlarge",
    "image_uri": "me/image:1",
    "num_machines": 2,
}
KEYS = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "s3cret"}


def test_the_plan_is_the_job_and_starts_nothing_here(request_for):
    request = request_for("train.py", "--epochs", "3", config=CONFIG)
    plan = select_launcher(request).plan(request)
    assert (plan.launcher, plan.processes, plan.num_ranks) == ("sagemaker", (), 2)
    assert json.loads(plan.options["job"])["estimator"]["hyperparameters"] == {"epochs": 3}
    assert '"instance_type": "ml.p3.2xlarge"' in plan.describe()


def test_the_keys_are_hidden(request_for):
    plan = SageMakerLauncher().plan(request_for(config=CONFIG, flags=KEYS))
    assert dict(plan.secrets) == KEYS
    shown = f"{plan.describe()}{plan.to_dict()}{plan!r}"
    assert not any(value in shown for value in KEYS.values())


def test_a_key_without_its_secret_is_refused(request_for):
    with pytest.raises(ConfigError, match="`--aws_access_key_id` and `--aws_secret_access_key` go together"):
        SageMakerLauncher().plan(request_for(config=CONFIG, flags={"aws_access_key_id": "AKIA"}))
