"""How many processes, on which devices."""

from __future__ import annotations

from accel_launch.config.question import Answers, Question, of_setting, yes_no
from accel_launch.config.questions.place import MACHINE, has_several_machines, is_multi, is_plain, is_tpu
from accel_state.environment.parsers import text


def _has_gpus(answers: Answers) -> bool:
    on_gpus = answers.get(MACHINE) in ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA")
    return on_gpus and not answers.get("use_cpu") and not has_several_machines(answers)


QUESTIONS = (
    of_setting(
        "num_processes",
        "How many processes in all?",
        default=lambda answers: 8 if is_tpu(answers) else answers.get("num_machines", 1),
        when=lambda answers: is_multi(answers) or is_tpu(answers),
    ),
    Question("gpu_ids", "Which GPUs of this machine, such as 0,2?", text, "all", _has_gpus),
    yes_no(
        "enable_cpu_affinity",
        "Bind each process to the CPU cores near its GPU (NVIDIA)?",
        when=lambda answers: (
            answers.get(MACHINE) == "MULTI_GPU" or (is_plain(answers) and _has_gpus(answers))
        ),
    ),
)
