"""Jobs on Amazon SageMaker. Nothing here asks for a key or a secret: those stay with AWS's own configuration."""

from __future__ import annotations

from accel_launch.config.question import Question, answered, both, of_setting, yes_no
from accel_launch.config.questions.place import is_sagemaker
from accel_state.environment.parsers import choice

KIND = "?sagemaker_kind"
_KINDS = {
    "NO": "No distributed training",
    "DATA_PARALLEL": "Data parallelism",
    "MODEL_PARALLEL": "Model parallelism",
}
_is_distributed = both(is_sagemaker, answered(KIND, "DATA_PARALLEL", "MODEL_PARALLEL"))

QUESTIONS = (
    of_setting("sagemaker_profile", "Which AWS profile signs in?", default="default", when=is_sagemaker),
    of_setting("sagemaker_region", "Which region?", when=is_sagemaker),
    of_setting(
        "sagemaker_role",
        "Which IAM role does the job run as?",
        default="accelerate_sagemaker_execution_role",
        when=is_sagemaker,
    ),
    yes_no("?image", "Use a container image of your own?", when=is_sagemaker),
    of_setting("sagemaker_image_uri", "Which image?", when=answered("?image")),
    yes_no("?inputs", "Hand over input channels?", when=is_sagemaker),
    of_setting(
        "sagemaker_inputs_file",
        "Which file lists them?",
        default="sagemaker_inputs.tsv",
        when=answered("?inputs"),
    ),
    yes_no("?metrics", "Let SageMaker watch metrics?", when=is_sagemaker),
    of_setting(
        "sagemaker_metrics_file",
        "Which file lists them?",
        default="sagemaker_metrics_definition.tsv",
        when=answered("?metrics"),
    ),
    Question(
        KIND,
        "What is the distributed mode?",
        choice(*_KINDS),
        "NO",
        is_sagemaker,
        labels=_KINDS,
    ),
    of_setting(
        "sagemaker_instance_type",
        "Which kind of machine?",
        default=lambda answers: "ml.p3.2xlarge" if answers[KIND] == "NO" else "ml.p3.16xlarge",
        when=is_sagemaker,
    ),
    of_setting("num_machines", "How many machines?", when=_is_distributed),
)
