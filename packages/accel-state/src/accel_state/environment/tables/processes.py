"""Variables of those who start processes: torchrun, MPI, the TPU runtime, OpenMP.

`accel_state.process_environments` reads the ranks and sizes together, as one topology.
"""

from __future__ import annotations

from accel_state.environment.parsers import boolean, count, index, port, text
from accel_state.environment.setting import Setting

TITLE = "Processes"

SETTINGS = (
    Setting(
        "master_addr",
        "MASTER_ADDR",
        text,
        None,
        "Host of rank 0, where the ranks meet.",
        flag="--main_process_ip",
        config_key="main_process_ip",
    ),
    Setting(
        "master_port",
        "MASTER_PORT",
        port,
        None,
        "Port on that host.",
        flag="--main_process_port",
        config_key="main_process_port",
    ),
    Setting("rank", "RANK", index, None, "Rank of this process (torchrun)."),
    Setting("world_size", "WORLD_SIZE", count, None, "Number of processes (torchrun)."),
    Setting("local_rank", "LOCAL_RANK", index, None, "Rank on this machine (torchrun)."),
    Setting(
        "local_world_size", "LOCAL_WORLD_SIZE", count, None, "Number of processes on this machine (torchrun)."
    ),
    Setting("ompi_rank", "OMPI_COMM_WORLD_RANK", index, None, "Rank of this process (Open MPI)."),
    Setting("ompi_world_size", "OMPI_COMM_WORLD_SIZE", count, None, "Number of processes (Open MPI)."),
    Setting("ompi_local_rank", "OMPI_COMM_WORLD_LOCAL_RANK", index, None, "Rank on this machine (Open MPI)."),
    Setting(
        "ompi_local_world_size",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        count,
        None,
        "Number of processes on this machine (Open MPI).",
    ),
    Setting("mv2_rank", "MV2_COMM_WORLD_RANK", index, None, "Rank of this process (MVAPICH)."),
    Setting("mv2_world_size", "MV2_COMM_WORLD_SIZE", count, None, "Number of processes (MVAPICH)."),
    Setting("mv2_local_rank", "MV2_COMM_WORLD_LOCAL_RANK", index, None, "Rank on this machine (MVAPICH)."),
    Setting(
        "mv2_local_world_size",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        count,
        None,
        "Number of processes on this machine (MVAPICH).",
    ),
    Setting("pmi_rank", "PMI_RANK", index, None, "Rank of this process (Intel MPI, MPICH)."),
    Setting("pmi_world_size", "PMI_SIZE", count, None, "Number of processes (Intel MPI, MPICH)."),
    Setting("mpi_local_rank", "MPI_LOCALRANKID", index, None, "Rank on this machine (Intel MPI, MPICH)."),
    Setting(
        "mpi_local_world_size",
        "MPI_LOCALNRANKS",
        count,
        None,
        "Number of processes on this machine (Intel MPI, MPICH).",
    ),
    Setting(
        "num_cpu_threads_per_process",
        "OMP_NUM_THREADS",
        count,
        None,
        "Number of CPU threads of each process.",
        flag="--num_cpu_threads_per_process",
    ),
    Setting("kmp_affinity", "KMP_AFFINITY", text, None, "How Intel's OpenMP binds threads to cores."),
    Setting(
        "kmp_blocktime",
        "KMP_BLOCKTIME",
        text,
        None,
        "How long Intel's OpenMP threads wait before they sleep.",
    ),
    Setting(
        "tpu_name",
        "TPU_NAME",
        text,
        None,
        "Name of the TPU.",
        flag="--tpu_name",
        config_key="tpu_name",
    ),
    Setting(
        "downcast_bf16",
        "ACCELERATE_DOWNCAST_BF16",
        boolean,
        False,
        "On TPUs in bf16, make doubles float32, and only floats bf16; otherwise both are bf16.",
        flag="--downcast_bf16",
        config_key="downcast_bf16",
    ),
    Setting("xla_use_bf16", "XLA_USE_BF16", boolean, False, "XLA casts floats and doubles to bf16."),
    Setting(
        "xla_downcast_bf16",
        "XLA_DOWNCAST_BF16",
        boolean,
        False,
        "XLA casts floats to bf16, doubles to float.",
    ),
)
