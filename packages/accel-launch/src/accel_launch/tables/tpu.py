"""Settings of TPUs and TPU pods."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import Parser, boolean, names, text


def _to_assignments(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in text.split(","):
        if "=" in part:
            found.append(part.strip())
        elif found:
            found[-1] += f",{part}"  # a value with a comma in it
        elif part.strip():
            raise ValueError(text)
    return tuple(found)


assignments = Parser("`NAME=VALUE`, with commas between several", _to_assignments)

TITLE = "TPUs"

SETTINGS = (
    Setting(
        "tpu_cluster",
        "",
        boolean,
        False,
        "Run on all machines of a TPU pod.",
        flag="--tpu_cluster",
        config_key="tpu_use_cluster",
    ),
    Setting(
        "no_tpu_cluster",
        "",
        boolean,
        False,
        "Run on this machine of the pod only.",
        flag="--no_tpu_cluster",
    ),
    Setting(
        "tpu_use_sudo",
        "",
        boolean,
        False,
        "Run with `sudo` on the machines of the pod.",
        flag="--tpu_use_sudo",
        config_key="tpu_use_sudo",
    ),
    Setting(
        "tpu_zone",
        "",
        text,
        None,
        "Zone of the TPU.",
        flag="--tpu_zone",
        config_key="tpu_zone",
    ),
    Setting(
        "tpu_vm",
        "",
        names,
        (),
        "Machine of the pod, where it is no instance group; may be given several times.",
        flag="--vm",
        config_key="tpu_vm",
    ),
    Setting(
        "tpu_env",
        "",
        assignments,
        (),
        "Variable to set on the machines of the pod; may be given several times.",
        flag="--env",
        config_key="tpu_env",
    ),
    Setting(
        "main_training_function",
        "",
        text,
        "main",
        "Function of the script that trains.",
        flag="--main_training_function",
        config_key="main_training_function",
    ),
)
