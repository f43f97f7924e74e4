"""Every flag of ``accel launch``, followed from the command line to the environment or argv of a child."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_launch.options import OPTIONS, TOPICS
from accel_state.errors import ConfigError, NotAvailableError

FLAGS = [setting for setting in OPTIONS if setting.flag]
TO_RANKS = [setting for setting in FLAGS if setting.variable and setting.name not in ("num_processes",)]

# What must be requested as well, so that a flag has an effect.
CONTEXT = {
    "fsdp": ["--use_fsdp"],
    "deepspeed": ["--use_deepspeed"],
    "megatron": ["--use_megatron_lm"],
    "parallelism": ["--use_parallelism_config"],
    "fp8": ["--mixed_precision", "fp8"],
    "compilation": ["--dynamo_backend", "inductor"],
}
CONTEXT_OF_SETTING = {
    "deepspeed_offload_param_device": ["--zero_stage", "3"],
    "fsdp_activation_checkpointing_offload": [
        "--fsdp_version",
        "2",
        "--fsdp_activation_checkpointing",
        "true",
    ],
    "fsdp_min_num_params": ["--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"],
    "fsdp_transformer_layer_cls_to_wrap": ["--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"],
}
TOPIC_OF = {setting.name: name for name, topic in TOPICS.items() for setting in topic.settings}

# Flags that need a device, and which others they need.
ON_DEVICES = {
    "gpu_ids": ({}, "1"),
    "cpu_affinity": ({}, "true"),
    "share_gpus": ({}, "true"),
}

# Flags that never reach the ranks as a variable: the other flags they need, and what the plan then says.
CPU = ["--cpu", "--num_processes", "2"]
MACHINES = ["--cpu", "--num_processes", "2", "--num_machines", "2", "--main_process_ip", "10.0.0.1"]
ELASTIC = [*MACHINES, "--rdzv_backend", "c10d"]
DEEPSPEED = ["--use_deepspeed", *MACHINES[1:]]
HOSTFILE = ["--deepspeed_hostfile", "hosts"]
RAY = [*CPU, "--launcher", "ray"]
PODS = [*CPU, "--launcher", "kubernetes", "--kubernetes_image", "image:1"]
POD = ["--tpu", "--tpu_cluster", "--tpu_name", "pod"]
IN_PLAN = {
    "num_processes": (["--cpu"], "3", '"num_ranks": 3'),
    "num_cpu_threads_per_process": (["--cpu"], "3", '"OMP_NUM_THREADS": "3"'),
    "nproc_per_node": (["--cpu", *MACHINES[3:]], "3", '"num_ranks": 6'),
    "rdzv_endpoint": (["--cpu", "--num_machines", "2"], "10.9.8.7:3", '"MASTER_ADDR": "10.9.8.7"'),
    "prefix": (CPU, "", '"prefix": "[rank${rank}] "'),
    "show_ranks": (CPU, "0-1", '"shown_ranks": [ 0, 1 ]'),
    "multi_gpu": (["--config_file", "fsdp.yaml"], "", '"environ": {}'),  # no FSDP
    "tpu": ([], "", '"launcher": "tpu"'),
    "master_addr": (["--cpu", "--num_machines", "2"], "10.9.8.7", '"MASTER_ADDR": "10.9.8.7"'),
    "master_port": (CPU, "29511", '"port": 29511'),
    "num_machines": (["--cpu", "--main_process_ip", "10.0.0.1"], "3", '"WORLD_SIZE": "3"'),
    "machine_rank": (MACHINES, "1", '"RANK": "1"'),
    "same_network": (
        ["--config_file", "networks.yaml", *MACHINES],
        "",
        '"launcher": "machines"',
    ),  # no `c10d`
    "rdzv_backend": (MACHINES, "c10d", "--rdzv_backend=c10d"),
    "rdzv_id": (ELASTIC, "mine", "--rdzv_id=mine"),
    "rdzv_conf": (ELASTIC, "timeout=7", "--rdzv_conf=timeout=7"),
    "max_restarts": (CPU, "4", '"max_restarts": 4'),
    "monitor_interval": (ELASTIC, "0.5", "--monitor_interval=0.5"),
    "role": (CPU, "trainer", '"ROLE_NAME": "trainer"'),
    "tee": (CPU, "3", '"tee": "3"'),
    "log_dir": (CPU, "logs", '/logs"'),
    "grace_period_s": (["--cpu"], "7.5", '"grace_period_s": 7.5'),
    "report": (["--cpu"], "crash.json", "/crash.json"),
    "hosts": (["--cpu"], "h1,h2:1", '"host": "h2"'),
    "hostfile": (["--cpu"], "hosts", '"host": "worker-1"'),
    "ssh_options": (["--cpu", "--hosts", "h1,h2"], "-p 2222", '"ssh_options": "-p 2222"'),
    "no_preflight": (["--cpu", "--hosts", "h1,h2"], "", '"no_preflight": "true"'),
    "deepspeed_hostfile": (DEEPSPEED, "hosts", "--hostfile=hosts"),
    "deepspeed_exclusion_filter": ([*DEEPSPEED, *HOSTFILE], "worker-0:1", "--exclude=worker-0:1"),
    "deepspeed_inclusion_filter": ([*DEEPSPEED, *HOSTFILE], "worker-0:1", "--include=worker-0:1"),
    "deepspeed_multinode_launcher": ([*DEEPSPEED, *HOSTFILE], "mpich", "--launcher=mpich"),
    "fp8_override_linear_precision": (
        ["--cpu", "--mixed_precision", "fp8"],
        "true,false,true",
        '"FP8_OVERRIDE_WGRAD": "true"',
    ),
    "use_mpirun": (CPU, "", '"launcher": "mpi"'),
    "mpirun_hostfile": (MACHINES, "hosts", '"hostfile": "hosts"'),
    "mpirun_ccl": ([*CPU, "--use_mpirun"], "3", '"CCL_WORKER_COUNT": "3"'),
    "slurm": (["--cpu"], "", '"launcher": "slurm"'),
    "slurm_options": (["--cpu", "--slurm"], "--partition=gpu -v", "#SBATCH --partition=gpu\\n#SBATCH -v"),
    "slurm_array": (["--cpu", "--slurm"], "0-3", "#SBATCH --array=0-3"),
    "slurm_requeue": (["--cpu", "--slurm"], "", "#SBATCH --requeue"),
    "launcher": (MACHINES, "elastic", '"launcher": "elastic"'),
    "ray_address": (RAY, "10.0.0.1:6379", '"address": "10.0.0.1:6379"'),
    "ray_cpus_per_process": (RAY, "3", '\\"CPU\\": 3'),
    "ray_resources": (RAY, "a=2", '\\"a\\": 2'),
    "ray_runtime_env": (RAY, "runtime.yaml", '"cwd": "{cwd}"'),
    "ray_wait_s": (RAY, "7", '"wait_s": "7.0"'),
    "kubernetes_image": (PODS[:-2], "image:1", "image: image:1\\n"),
    "kubernetes_job_name": (PODS, "my-job", "name: my-job\\n"),
    "kubernetes_namespace": (PODS, "team", "namespace: team\\n"),
    "kubernetes_kind": (PODS, "pytorchjob", "kind: PyTorchJob\\n"),
    "kubernetes_gpus_per_node": (PODS, "2", "nvidia.com/gpu: '2'"),
    "kubernetes_gpu_resource": (
        [*PODS, "--kubernetes_gpus_per_node", "2"],
        "amd.com/gpu",
        "amd.com/gpu: '2'",
    ),
    "kubernetes_cpu": (PODS, "500m", "cpu: 500m\\n"),
    "kubernetes_memory": (PODS, "64Gi", "memory: 64Gi\\n"),
    "kubernetes_working_dir": (PODS, "/app", "workingDir: /app\\n"),
    "kubernetes_secrets": (PODS, "TOKEN=store:key", "name: TOKEN\\n"),
    "kubernetes_backoff_limit": (PODS, "3", "maxRestarts: 3\\n"),
    "kubernetes_manifest": (PODS, "job.yaml", '/job.yaml"'),
    "tpu_name": (["--tpu", "--tpu_cluster"], "my-pod", '"ssh", "my-pod"'),
    "tpu_cluster": (["--tpu", "--tpu_name", "pod"], "", '"launcher": "tpu-pod"'),
    "no_tpu_cluster": (["--config_file", "pod.yaml"], "", '"launcher": "tpu"'),
    "tpu_use_sudo": (POD, "", "&& sudo python3 -m accel_launch"),
    "tpu_zone": (POD, "us-central1-a", '"--zone", "us-central1-a"'),
    "tpu_vm": (["--tpu", "--tpu_cluster"], "vm-1", '"compute", "ssh", "vm-1"'),
    "env": (CPU, "MY_TOKEN=hush", '"private": [ "MY_TOKEN" ]'),
    "main_training_function": (["--tpu"], "train", "--function=train"),
    "downcast_bf16": (["--tpu", "--mixed_precision", "bf16"], "", '"XLA_DOWNCAST_BF16": "1"'),
}
# Those without which the others around them make no sense.
NEEDED = (
    "kubernetes_image",
    "master_addr",
    "rdzv_endpoint",
    "num_machines",
    "tpu_name",
    "tpu_vm",
    "deepspeed_hostfile",
)
# Flags that are taken for the sake of old command lines, with a warning.
WITHOUT_EFFECT = ("fp8_opt_level", "ipex", "use_xpu")
# Flags whose values no plan shows; `launchers/test_sagemaker.py` follows them.
SECRET = ("aws_access_key_id", "aws_secret_access_key")

FILES = {
    "fsdp.yaml": "distributed_type: FSDP\n",
    "networks.yaml": "same_network: false\n",
    "pod.yaml": "distributed_type: XLA\ntpu_use_cluster: true\ntpu_name: pod\n",
    "hosts": "worker-0 slots=1\nworker-1 slots=1\n",
    "runtime.yaml": "working_dir: .\n",
    "train.py": "",
}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for setting in OPTIONS:
        if setting.variable:
            monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PATH", str(tmp_path))  # a plan needs no program
    return tmp_path


@pytest.fixture
def planned(capsys):
    def plan(*arguments: str) -> str:
        assert main(["launch", "--dry-run", "--json", *arguments, "train.py"]) == 0
        captured = capsys.readouterr()
        # Nothing that was given is without effect, but for GPUs that are not here.
        assert captured.err == "" or {"--multi_gpu", "--multi-gpu"} & {*arguments}
        return " ".join(captured.out.split())

    return plan


def given(setting, text: str, flag: str) -> list[str]:
    return [flag] if setting.is_switch else [flag, text]


HERE = [setting for setting in TO_RANKS if setting.name not in {*IN_PLAN, *ON_DEVICES, *WITHOUT_EFFECT}]


@pytest.mark.parametrize("setting", HERE, ids=lambda setting: setting.name)
def test_a_flag_reaches_every_rank_as_its_variable(planned, texts_for, setting):
    text = texts_for(setting)[0] if not setting.is_switch else "true"
    context = ["--cpu", "--num_processes", "2", *CONTEXT.get(TOPIC_OF[setting.name], [])]
    context += CONTEXT_OF_SETTING.get(setting.name, [])
    for flag in (setting.flag, "--" + setting.flag[2:].replace("_", "-")):
        plan = json.loads(planned(*context, *given(setting, text, flag)))
        expected = setting.text_of(setting.parse(text))
        assert {process["environ"].get(setting.variable) for process in plan["processes"]} == {expected}


@pytest.mark.parametrize("name", ON_DEVICES)
def test_a_flag_for_devices_that_are_not_here_reaches_the_ranks_too(request_for, name):
    (setting,) = (setting for setting in FLAGS if setting.name == name)
    others, text = ON_DEVICES[name]
    request = request_for(flags={**others, name: text}, gpus=("0", "1"))
    assert request.environ()[setting.variable] == text


@pytest.mark.parametrize("name", IN_PLAN)
def test_a_flag_of_the_launcher_shows_in_the_plan(planned, name):
    (setting,) = (setting for setting in FLAGS if setting.name == name)
    context, text, seen = IN_PLAN[name]
    for flag in (setting.flag, "--" + setting.flag[2:].replace("_", "-")):
        assert seen in planned(*context, *given(setting, text, flag))
    if name not in NEEDED:
        assert seen not in planned(*context)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_flag_that_does_nothing_any_more_is_reported(capsys, name):
    (setting,) = (setting for setting in FLAGS if setting.name == name)
    assert main(["launch", "--dry-run", *given(setting, "O1", setting.flag), "train.py"]) == 0
    assert capsys.readouterr().err.startswith(f"warning: `{setting.flag}` has no effect any more: ")


@pytest.mark.parametrize("kind", ["script", "module"])
def test_the_drop_in_comes_before_the_command(request_for, monkeypatch, kind):
    point = EntryPoint("accelerate", "stands.in", "accel.drop_ins")
    monkeypatch.setattr("accel_launch.request.entry_points", lambda group: (point,))
    module = ["-m"] if kind == "module" else []
    request = request_for(flags={"drop_in": "true"}, kind=kind)
    assert request.program() == (*request.interpreter, "-u", "-m", "stands.in", *module, *request.command)


def test_the_drop_in_needs_its_package_and_a_python(request_for, monkeypatch):
    with pytest.raises(ConfigError, match="--no_python"):
        request_for(flags={"drop_in": "true"}, kind="executable")
    monkeypatch.setattr("accel_launch.request.entry_points", lambda group: ())
    with pytest.raises(NotAvailableError, match=r"Run `pip install dist/\*.whl`; `dist` has the wheels that"):
        request_for(flags={"drop_in": "true"})


def test_every_flag_is_followed():
    followed = {
        *(setting.name for setting in HERE),
        *ON_DEVICES,
        *IN_PLAN,
        *WITHOUT_EFFECT,
        *SECRET,
        "drop_in",
        "standalone",
    }
    assert {setting.name for setting in FLAGS} == followed


@pytest.mark.parametrize("setting", FLAGS, ids=lambda setting: setting.name)
def test_a_flag_reaches_the_request_in_both_spellings(request_for, texts_for, setting, capsys):
    """Through the real command line, for those too whose launcher needs what is not here."""
    text = "true" if setting.is_switch else texts_for(setting)[0]
    for flag in (setting.flag, "--" + setting.flag[2:].replace("_", "-")):
        assert main(["config", "show", "--json", *given(setting, text, flag)]) == 0
        shown = json.loads(capsys.readouterr().out)[setting.name]
        expected = "(secret)" if setting.launch.is_secret else setting.text_of(setting.parse(text))
        assert (shown["value"], shown["source"]) == (expected, "flag")


def test_switches_are_the_flags_that_take_no_value(capsys):
    for setting in FLAGS:
        takes_none = main(["launch", "--dry-run", setting.flag]) == 2
        message = capsys.readouterr().err
        assert takes_none
        # A switch leaves nothing to launch; any other flag misses its value.
        assert ("nothing to launch" in message) == (setting.is_switch), setting.flag
