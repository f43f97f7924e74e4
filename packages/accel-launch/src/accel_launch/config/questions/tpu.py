"""TPUs and TPU pods."""

from __future__ import annotations

from accel_launch.config.question import Question, answered, both, of_setting, yes_no
from accel_launch.config.questions.place import is_tpu
from accel_state.environment.parsers import names, text

_pod = both(is_tpu, answered("tpu_use_cluster"))

QUESTIONS = (
    of_setting("main_training_function", "Which function of the script trains?", when=is_tpu),
    yes_no("tpu_use_cluster", "Run on a TPU pod?", when=is_tpu),
    of_setting("tpu_name", "What is the TPU called?", when=_pod),
    of_setting("tpu_zone", "In which zone is it?", when=_pod),
    yes_no("tpu_use_sudo", "Run with sudo there?", when=_pod),
    yes_no("?tpu_vm", "Name the machines one by one (else the instance group is used)?", when=_pod),
    of_setting("tpu_vm", "Which machines, with commas between them?", when=answered("?tpu_vm")),
    of_setting("env", "Which variables, as NAME=VALUE with commas between them?", when=_pod),
    yes_no("?tpu_commands", "Run commands on the pod when it starts?", when=_pod),
    yes_no("?tpu_file", "Are they in a file?", when=answered("?tpu_commands")),
    Question("command_file", "Which file?", text, "", answered("?tpu_file")),
    Question(
        "commands", "Which commands, with commas between them?", names, (), answered("?tpu_file", False)
    ),
)
