"""Tasks started by SLURM's ``srun``, and SLURM's notations: ``n[01-03,7],gpu5`` for hosts, ``2(x3),1`` for counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from accel_state.environment import read
from accel_state.errors import ConfigError
from accel_state.topology import Topology, check_within, is_set, optional_int, required_int

_STEP_IDS = ("SLURM_STEP_ID", "SLURM_STEPID")
# Ids from here on are of steps other than `srun`: the batch script, the interactive shell and the like.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Ports below are often taken; Linux assigns ports above to outgoing connections. The jobs of a cluster get
# different ones, so that two jobs on one machine do not meet.
_FIRST_PORT, _NUM_PORTS = 15000, 17000
# `srun --pty bash` names its job after the shell.
_SHELLS = frozenset({"bash", "csh", "dash", "fish", "interactive", "ksh", "sh", "tcsh", "zsh"})

# Names of several dimensions have several brackets: `rack[0-1]n[0-3]`.
_NUMBERS = r"\d+(?:-\d+)?"
_HOST = rf"(?:[^\[\],\s]|\[{_NUMBERS}(?:,{_NUMBERS})*\])+"
_HOSTS = re.compile(rf"({_HOST})(?:\s*,\s*{_HOST})*")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class SLURMEnvironment:
    """``SLURM_PROCID``, ``SLURM_NTASKS``, ``SLURM_LOCALID``, ``SLURM_NODEID`` of a step's task.

    The shell of ``sbatch`` or ``salloc`` also has most of these, but is always one process; only ``srun`` sets a
    step id. The shell of ``srun --pty bash`` has one as well: it is recognized by its terminal, and as the first step
    of a job that is named after a shell. Variables of the step override variables of the job, which may be larger.

    https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
    """

    name: ClassVar[str] = "slurm"

    def detect(self, environ: Mapping[str, str]) -> bool:
        steps = [step for step in (optional_int(environ, name) for name in _STEP_IDS) if step is not None]
        if not steps or steps[0] >= _FIRST_SPECIAL_STEP or not is_set(environ, "SLURM_PROCID"):
            return False
        is_in_shell = is_set(environ, "SLURM_PTY_PORT") and environ.get("SLURM_JOB_NAME", "") in _SHELLS
        return steps[0] > 0 or not is_in_shell

    def topology(self, environ: Mapping[str, str]) -> Topology:
        size_variable = _first_set(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
        nodes_variable = _first_set(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
        rank, local_rank = (_number(environ, name) for name in ("SLURM_PROCID", "SLURM_LOCALID"))
        world_size = _number(environ, size_variable)
        num_nodes = optional_int(environ, nodes_variable) or 1
        node_rank = _number(environ, "SLURM_NODEID") if num_nodes > 1 else 0
        check_within("SLURM_PROCID", rank, size_variable, world_size)
        check_within("SLURM_NODEID", node_rank, nodes_variable, num_nodes)
        # The job's list describes a step of the job's size only.
        is_whole_job = not is_set(environ, "SLURM_STEP_NUM_TASKS")
        per_node_variable = _first_set(
            environ, "SLURM_STEP_TASKS_PER_NODE", *(["SLURM_TASKS_PER_NODE"] if is_whole_job else [])
        )
        if is_set(environ, per_node_variable):
            local_world_size = _count_of(node_rank, environ[per_node_variable], per_node_variable)
            check_within("SLURM_LOCALID", local_rank, per_node_variable, local_world_size)
        else:
            local_world_size = max(-(-world_size // num_nodes), local_rank + 1)
        _check_world_size(environ, size_variable, world_size)
        return Topology(
            rank,
            world_size,
            local_rank,
            local_world_size,
            node_rank,
            num_nodes,
            source=self.name,
            master_addr=environ.get("MASTER_ADDR") or self._master_addr(environ, num_nodes),
            master_port=read("master_port", environ) or self._master_port(environ),
        )

    def _master_addr(self, environ: Mapping[str, str], num_nodes: int) -> str | None:
        if num_nodes == 1:
            return "127.0.0.1"
        variable = _first_set(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
        return first_host(environ[variable], variable=variable) if is_set(environ, variable) else None

    def _master_port(self, environ: Mapping[str, str]) -> int:
        job = optional_int(environ, _first_set(environ, "SLURM_JOB_ID", "SLURM_JOBID")) or 0
        step = optional_int(environ, _first_set(environ, *_STEP_IDS)) or 0
        return _FIRST_PORT + (job * 31 + step) % _NUM_PORTS


def _first_set(environ: Mapping[str, str], *variables: str) -> str:
    """Return the first of ``variables`` that is set, or the last one, for messages that name it."""
    return next((variable for variable in variables if is_set(environ, variable)), variables[-1])


def _number(environ: Mapping[str, str], variable: str) -> int:
    return required_int(environ, variable, launcher="SLURM's srun", because="SLURM_STEP_ID")


def _count_of(node_rank: int, text: str, variable: str) -> int:
    counts = expand_counts(text, variable=variable)
    if node_rank >= len(counts):
        raise ConfigError(
            f"`{variable}` is `{text}`, which has no node {node_rank} (`SLURM_NODEID`). "
            "Start ranks with `srun`, which sets both, or unset `SLURM_NODEID`."
        )
    return counts[node_rank]


def _check_world_size(environ: Mapping[str, str], size_variable: str, world_size: int) -> None:
    given = optional_int(environ, "WORLD_SIZE")
    if given is not None and given != world_size:
        raise ConfigError(
            f"`WORLD_SIZE` is `{given}`, but `{size_variable}` is `{world_size}`. Unset `WORLD_SIZE`, or "
            "also set `RANK` and `LOCAL_RANK`."
        )


def first_host(text: str, *, variable: str) -> str:
    """Return the first host of a compressed list.

    Raises:
        ConfigError: If the text is not such a list; names ``variable``.
    """
    match = _HOSTS.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"`{variable}` is `{text}`, but it must be a list of hosts such as `n[01-03,7],gpu5`."
        )
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match[1])


def expand_counts(text: str, *, variable: str) -> list[int]:
    """Return one number per node: ``2(x3),1`` gives ``2, 2, 2, 1``.

    Raises:
        ConfigError: If the text has another form; names ``variable``.
    """
    counts: list[int] = []
    for part in text.strip().split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"`{variable}` is `{text}`, but it must look like `2(x3),1`.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
