"""The questionnaire: asks what matters for the answers so far, and turns the answers into a config file."""

from __future__ import annotations

from typing import Any

from accel_launch.config.prompts import Asker
from accel_launch.config.question import Answers, Question
from accel_launch.config.questions import engines, place, training

QUESTIONS: tuple[Question, ...] = (
    *place.PLACE,
    *place.SAGEMAKER,
    *training.COMPILATION,
    *engines.DEEPSPEED,
    *engines.FSDP,
    *engines.MEGATRON,
    *engines.PARALLELISM,
    *place.TPU,
    *training.PROCESSES,
    *training.PRECISION,
)
_ENGINES = {"?deepspeed": "DEEPSPEED", "?fsdp": "FSDP", "?megatron": "MEGATRON_LM"}


def fill_in(asker: Asker) -> dict[str, Any]:
    """Ask everything that matters and return the values by config key, flat (``section.key``)."""
    answers: dict[str, Any] = {}
    for question in QUESTIONS:
        if question.when(answers):
            answers[question.key] = question.ask(asker, answers)
    engines.settle(answers)
    return values_of(answers)


def values_of(answers: Answers) -> dict[str, Any]:
    """Return what is written for ``answers``: the keys of the file, with what follows from the others."""
    values = {
        key: value for key, value in answers.items() if not key.startswith("?") and value not in ("", ())
    }
    values["distributed_type"] = _kind_of(answers)
    if answers.get(place.MACHINE) == "MULTI_CPU":
        values["use_cpu"] = True
    if answers.get(place.LAUNCHER) in ("slurm", "ray", "kubernetes"):
        values["launcher"] = answers[place.LAUNCHER]
    return values


def _kind_of(answers: Answers) -> str:
    engines = [kind for switch, kind in _ENGINES.items() if answers.get(switch)]
    machine = answers.get(place.KIND) or answers.get(place.MACHINE) or "NO"
    return engines[0] if engines else str(machine)
