"""Variables as text: lines for a file that another launcher reads, and lists of paths."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from accel_state.environment.door import variable

_FORBIDDEN = (";", "\n", "<", ">", " ")


def convert_dict_to_env_variables(current_env: Mapping[str, str]) -> list[str]:
    """Return one line ``KEY=value\\n`` per variable, for files such as DeepSpeed's ``.deepspeed_env``.

    The readers of such files have no quoting, so a variable that is empty or holds a blank, a line break or
    one of ``; < >`` cannot be passed on; it is left out with a warning that names it.
    """
    lines: list[str] = []
    for key, value in current_env.items():
        if key and value and not any(character in key + value for character in _FORBIDDEN):
            lines.append(f"{key}={value}\n")
        else:
            warnings.warn(
                f"The variable `{key}` is not passed on: its value `{value}` is empty or needs quoting.",
                stacklevel=2,
            )
    return lines


def env_var_path_add(env_var_name: str, path_to_add: str) -> str:
    """Return the paths in the variable ``env_var_name`` with ``path_to_add`` at the end, each once.

    The environment itself is left alone.
    """
    paths = [path for path in (variable(env_var_name) or "").split(":") if path]
    return ":".join(dict.fromkeys([*paths, str(path_to_add)]))
