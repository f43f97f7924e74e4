"""Settings that somebody gave, but that nothing in this launch acts on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from accel_launch.config.keys import is_inert
from accel_launch.engine import SAGEMAKER
from accel_launch.launchers.selection import BUILT_IN, SETTINGS_OF_OWN_RANKS, select_launcher
from accel_launch.options import OPTION_GROUPS, OPTIONS, SETTINGS_OF_LAUNCHER
from accel_launch.request import LaunchRequest

_FP8_LIBRARIES = {
    "TE": """fp8_use_autocast_during_eval fp8_margin fp8_interval fp8_format fp8_amax_history_len
        fp8_amax_compute_algo fp8_use_mxfp8_block_scaling fp8_override_linear_precision""",
    "MSAMP": "fp8_opt_level",
    "AO": "fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim",
}
# Keys that are read by something else than a setting of the launch: the engine, SageMaker, `accel tpu-config`.
_READ_ELSEWHERE = frozenset(
    {"additional_args", "command_file", "commands", "compute_environment", "distributed_type"}
)


_OF_PODS = ("tpu_use_sudo", "tpu_zone", "tpu_vm", "tpu_env")
_OF_RANKS_HERE = ("gpu_ids", "cpu_affinity", "num_cpu_threads_per_process")
_OF_MEETINGS = frozenset(
    {"num_machines", "machine_rank", "master_addr", "master_port", "rdzv_backend", "same_network"}
)


class Rule(NamedTuple):
    """Some settings, when they count, and what to say if they do not."""

    names: frozenset[str]
    counts: Callable[[LaunchRequest], bool]
    needs: str


def _group(heading: str) -> frozenset[str]:
    return frozenset(setting.name for setting in OPTION_GROUPS[heading])


def _rule(names: Iterable[str], counts: Callable[[LaunchRequest], bool], needs: str) -> Rule:
    return Rule(frozenset(names), counts, needs)


def _has_machines(request: LaunchRequest) -> bool:
    return request.num_machines > 1 or _takes_route("slurm", "srun", "ssh")(request)


def _uses_fp8_library(library: str) -> Callable[[LaunchRequest], bool]:
    return lambda request: request.value("fp8_backend") in ("NO", library)


def _takes_route(*names: str) -> Callable[[LaunchRequest], bool]:
    """Return whether one of these launchers starts the run, or one of another package, of which nothing is known."""

    def takes(request: LaunchRequest) -> bool:
        chosen = select_launcher(request).name
        return chosen in names or chosen not in BUILT_IN

    return takes


def _takes_another_route(*names: str) -> Callable[[LaunchRequest], bool]:
    return lambda request: select_launcher(request).name not in names


def _of_launchers() -> Iterator[Rule]:
    for name, settings in SETTINGS_OF_LAUNCHER.items():
        own = (setting.name for setting in settings)
        yield _rule(own, _is_started_by(name), f"without `--launcher {name}`")


def _is_started_by(name: str) -> Callable[[LaunchRequest], bool]:
    return lambda request: select_launcher(request).name == name


RULES: tuple[Rule, ...] = (
    _rule(("ipex", "use_xpu"), lambda request: False, ""),
    _rule(("gpu_ids", "cpu_affinity"), lambda request: not request.value("use_cpu"), "on the CPU"),
    _rule(_group("FSDP"), lambda request: request.engine == "FSDP", "without `--use_fsdp`"),
    _rule(
        ("fsdp_min_num_params",),
        lambda request: request.value("fsdp_auto_wrap_policy") == "SIZE_BASED_WRAP",
        "without `--fsdp_auto_wrap_policy SIZE_BASED_WRAP`",
    ),
    _rule(
        _group("DeepSpeed") | _group("DeepSpeed on several machines"),
        lambda request: request.engine == "DEEPSPEED",
        "without `--use_deepspeed`",
    ),
    _rule(
        _group("DeepSpeed on several machines"), lambda request: request.num_machines > 1, "on one machine"
    ),
    _rule(
        _group("Megatron-LM"),
        lambda request: request.engine == "MEGATRON_LM",
        "without `--use_megatron_lm`",
    ),
    _rule(
        _group("parallelism sizes"),
        lambda request: request.value("use_parallelism_config"),
        "without `--use_parallelism_config`",
    ),
    _rule(
        _group("8-bit training"),
        lambda request: request.value("mixed_precision") == "fp8",
        "without `--mixed_precision fp8`",
    ),
    *(
        _rule(names.split(), _uses_fp8_library(library), f"without `--fp8_backend {library.lower()}`")
        for library, names in _FP8_LIBRARIES.items()
    ),
    _rule(
        _group("compilation") - {"dynamo_backend"},
        lambda request: request.value("dynamo_backend") != "NO",
        "without `--dynamo_backend`",
    ),
    _rule(("machine_rank", "master_addr", "same_network"), _has_machines, "on one machine"),
    _rule(("rdzv_backend", "rdzv_id"), _has_machines, "on one machine"),
    _rule(
        ("monitor_interval", "rdzv_conf"),
        _takes_route("elastic", "slurm", "srun", "kubernetes"),
        "where machines do not meet by `--rdzv_backend`",
    ),
    _rule(("ssh_options", "no_preflight"), _takes_route("ssh"), "without `--hosts` or `--hostfile`"),
    _rule(("hosts", "hostfile"), _takes_route("ssh"), "with this `--launcher`"),
    _rule(("slurm",), _takes_route("slurm"), "with this `--launcher`"),
    _rule(("use_mpirun",), _takes_route("mpi"), "with this `--launcher`"),
    _rule(("mpirun_ccl",), lambda request: request.value("use_mpirun"), "without `--use_mpirun`"),
    _rule(
        ("slurm_options", "slurm_array", "slurm_requeue"),
        lambda request: request.value("slurm"),
        "without `--slurm`",
    ),
    _rule(_group("TPUs") - {"tpu_name"}, lambda request: request.engine == "XLA", "without `--tpu`"),
    _rule(_OF_PODS, _takes_route("tpu-pod"), "without `--tpu_cluster`"),
    _rule(("downcast_bf16",), lambda request: request.value("mixed_precision") == "bf16", "without bf16"),
    _rule(_OF_RANKS_HERE, _takes_another_route("tpu", "tpu-pod"), "on TPUs"),
    _rule(
        (*_OF_RANKS_HERE, "num_processes", "use_cpu", "grace_period_s", "report"),
        _takes_another_route("sagemaker"),
        "on SageMaker",
    ),
    _rule(_OF_MEETINGS, _takes_another_route("tpu", "tpu-pod"), "on TPUs"),
    _rule(_OF_MEETINGS - {"num_machines"}, _takes_another_route("sagemaker"), "on SageMaker"),
    _rule(
        SETTINGS_OF_OWN_RANKS,
        _takes_route("local", "machines", "elastic", "slurm", "srun", "kubernetes"),
        "where another program starts the ranks",
    ),
    _rule(
        ("gpu_ids", "cpu_affinity", "report", *_OF_MEETINGS - {"num_machines", "master_port"}),
        _takes_another_route("kubernetes"),
        "on Kubernetes",
    ),
    _rule(
        ("gpu_ids", "cpu_affinity", *_OF_MEETINGS - {"num_machines", "master_port"}),
        _takes_another_route("ray"),
        "on Ray",
    ),
    *_of_launchers(),
    _rule(_group("SageMaker"), lambda request: request.engine == SAGEMAKER, "outside of SageMaker"),
)


def without_effect(request: LaunchRequest) -> list[str]:
    """Return one sentence for each flag and config key that asks for something nothing here acts on."""
    return [*_flags_and_keys(request), *_other_keys(request)]


def _flags_and_keys(request: LaunchRequest) -> Iterator[str]:
    told: set[str] = set()
    for rule in RULES:
        if rule.counts(request):
            continue
        for setting in OPTIONS:
            if setting.name in rule.names and setting.name not in told:
                place = _place(request, setting.name, setting.flag, setting.config_key)
                if place:
                    told.add(setting.name)
                    yield f"{place} has no effect {rule.needs or 'any more'}."


def _place(request: LaunchRequest, name: str, flag: str | None, key: str | None) -> str | None:
    """Return where the setting was given, None if nowhere, or in the file with a value that asks for nothing."""
    source = request.settings[name].source
    if source == "flag":
        return f"`{flag}`"
    if source == "config file" and key is not None and not is_inert(key, request.config.values.get(key)):
        return f"`{key}` in `{request.config.path}`"
    return None


def _other_keys(request: LaunchRequest) -> Iterator[str]:
    known = {setting.config_key for setting in OPTIONS} | _READ_ELSEWHERE
    for key, value in request.config.values.items():
        if key not in known and not is_inert(key, value):
            yield f"`{key}` in `{request.config.path}` has no effect on this launch."
