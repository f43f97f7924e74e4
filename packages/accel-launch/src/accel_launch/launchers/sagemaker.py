"""A job on Amazon SageMaker (``compute_environment: AMAZON_SAGEMAKER`` in the config file)."""

from __future__ import annotations

import json
from typing import ClassVar

from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest
from accel_launch.sagemaker.job import job_of
from accel_launch.sagemaker.submission import submit
from accel_state.errors import ConfigError

_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key")


class SageMakerLauncher(BuiltInLauncher):
    """Hands the script and its folder to SageMaker and shows what the job writes."""

    name: ClassVar[str] = "sagemaker"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        return LaunchPlan(
            self.name,
            processes=(),
            num_ranks=request.num_machines,
            options={"job": json.dumps(job_of(request), indent=2, default=str)},
            secrets=_credentials(request),
            shown_option="job",
        )

    def run(self, plan: LaunchPlan) -> int:
        return submit(json.loads(plan.options["job"]), plan.secrets)


def _credentials(request: LaunchRequest) -> dict[str, str]:
    given = {name: request.value(name) for name in _CREDENTIALS if request.value(name)}
    if len(given) == 1:
        raise ConfigError(
            "`--aws_access_key_id` and `--aws_secret_access_key` go together. Give both, or neither."
        )
    return given
