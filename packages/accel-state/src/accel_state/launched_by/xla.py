"""Processes of PyTorch/XLA, one per TPU core or chip, or one per host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from accel_state.environment import read
from accel_state.topology import Topology, check_within, is_set, optional_int

_TRACES = ("PJRT_DEVICE", "PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT")


class XLAEnvironment:
    """``PJRT_DEVICE``, ``PJRT_LOCAL_PROCESS_RANK``, ``..._COUNT``, ``TPU_WORKER_ID``, ``..._HOSTNAMES``.

    The runtime assigns the ranks; these are the values of the variables before it is initialized.

    https://docs.pytorch.org/xla/master/learn/pjrt.html
    """

    name: ClassVar[str] = "xla"

    def detect(self, environ: Mapping[str, str]) -> bool:
        return any(is_set(environ, variable) for variable in _TRACES)

    def topology(self, environ: Mapping[str, str]) -> Topology:
        local_rank = optional_int(environ, "PJRT_LOCAL_PROCESS_RANK") or 0
        local_world_size = optional_int(environ, "PJRT_LOCAL_PROCESS_COUNT") or 1
        check_within("PJRT_LOCAL_PROCESS_RANK", local_rank, "PJRT_LOCAL_PROCESS_COUNT", local_world_size)
        hosts = [host for host in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if host.strip()]
        node_rank = optional_int(environ, "TPU_WORKER_ID") or 0
        num_nodes = max(len(hosts), 1)
        check_within("TPU_WORKER_ID", node_rank, "the number of TPU_WORKER_HOSTNAMES", num_nodes)
        return Topology(
            node_rank * local_world_size + local_rank,
            num_nodes * local_world_size,
            local_rank,
            local_world_size,
            node_rank,
            num_nodes,
            source=self.name,
            master_addr=environ.get("MASTER_ADDR") or (hosts[0].strip() if hosts else None),
            master_port=read("master_port", environ),
        )
