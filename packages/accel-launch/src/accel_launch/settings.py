"""The settings that only a launch has, one row each, by topic; those that reach the ranks too are accel-state's.

A setting whose variable is empty never reaches the ranks and is not read from the environment.
"""

# ruff: noqa: E501 -- a row is a line
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from accel_launch.parsers import (
    assignments,
    dns_label,
    pairs,
    quantity,
    ranks,
    secret_references,
    shell_words,
    tee,
    three_booleans,
)
from accel_state.environment.parsers import boolean, choice, count, duration, index, names, text, unless
from accel_state.environment.settings import IN_PLACE_OF_IPEX, Setting, rule

AUTO = "auto"
"""The value of ``launcher`` that takes the first launcher which accepts the launch."""

own = rule("{}", "", "--{}", "{}")
only_flag = rule("{}", "", "--{}")
deepspeed = rule("deepspeed_{}", "", "--deepspeed_{}", "deepspeed_config.deepspeed_{}", needs=("deepspeed", "num_machines"))  # fmt: skip
slurm = rule("slurm_{}", "", "--slurm_{}", "slurm_config.slurm_{}")
ray = rule("ray_{}", "", "--ray_{}", "ray_config.ray_{}")
kubernetes = rule("kubernetes_{}", "", "--kubernetes_{}", "kubernetes_config.kubernetes_{}")
tpu = rule("tpu_{}", "", "--tpu_{}", "tpu_{}", needs=("tpu", "tpu_pod"))
sagemaker = rule("sagemaker_{}", "", None, "{}", needs=("sagemaker",))

_WAYS_OF_DEEPSPEED = choice("pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm")

# Parser, default, what it does. Where something else is given, the setting's name there breaks the rule.
# fmt: off
_ROWS: dict[str, tuple[Setting, ...]] = {
    "launcher": (
        own("launcher", text, AUTO, "Launcher to use, such as `ray` or `kubernetes`; `auto` takes the first that accepts the launch, those of other packages before our own.", variable="ACCEL_LAUNCHER", metavar="NAME"),
    ),
    "hardware": (
        only_flag("multi_gpu", boolean, False, "Run one process on each GPU.", is_switch=True),
        only_flag("tpu", boolean, False, "Run on a TPU.", is_switch=True),
        only_flag("nproc_per_node", unless("auto", unless("gpu", count, None), None), None, "Number of processes on each machine, as torchrun has it; `auto` or `gpu`: one for each GPU.", metavar="N"),
        own("gpu_ids", text, None, "GPUs of this machine to use, such as `0,2`.", variable="CUDA_VISIBLE_DEVICES", unset_values=("all",), needs=("gpu",), is_common=True),
        own("ipex", boolean, False, f"Has no effect any more: {IN_PLACE_OF_IPEX}.", config_key="ipex_config.ipex", is_switch=True, needs=("ipex",)),
        own("use_xpu", boolean, False, "Has no effect any more: XPUs are found without it.", config_key="ipex_config.use_xpu", is_switch=True, needs=("hidden_xpu",)),
    ),
    "machines": (
        own("num_machines", count, 1, "Number of machines.", other_flags=("--nnodes",), unset_values=(1,)),
        own("machine_rank", index, 0, "Place of this machine among them; 0 is where the ranks meet.", other_flags=("--node_rank",), unset_values=(0,), needs=("machines",)),
        own("same_network", boolean, True, "All machines are on one local network; if a config file denies it, they meet by `c10d`.", is_switch=True, unset_values=(True,), needs=("machines",)),
        own("rdzv_backend", text, "static", "How the machines find each other: `static`, or one of torch's, such as `c10d`, by which whoever reaches the port can run code.", unset_values=("static",), needs=("machines",)),
        only_flag("rdzv_endpoint", text, None, "Address and port of machine 0, as torchrun has it, instead of `--main_process_ip` and `--main_process_port`.", metavar="ADDRESS:PORT", needs=("machines",)),
        only_flag("standalone", boolean, False, "One machine and a free port, as torchrun has it: what a launch does anyway.", is_switch=True),
        only_flag("rdzv_id", text, None, "Name of the job on all its machines. Default: the scheduler's number, or made of user and command.", needs=("machines",)),
        only_flag("rdzv_conf", pairs, None, "Further settings of the rendezvous backend, as `KEY=VALUE,KEY=VALUE`.", needs=("rendezvous",)),
        only_flag("max_restarts", index, 0, "How often all ranks start again after one of them has failed.", needs=("own_ranks",)),
        only_flag("monitor_interval", duration, 0.1, "Seconds between two looks for machines that want to start again, where machines meet by `--rdzv_backend`.", needs=("rendezvous",)),
        only_flag("role", text, "default", "Name of the workers' role.", needs=("own_ranks",)),
    ),
    "hosts": (
        own("hosts", text, None, "Machines to start on, such as `host1,host2:4` (`:N` for N processes).", is_common=True),
        only_flag("hostfile", text, None, "File with one machine per line, such as `host1 slots=4`."),
        only_flag("ssh_options", shell_words, None, "Further options for `ssh`, as in `--ssh_options='-p 2222 -i KEY'`."),
        only_flag("no_preflight", boolean, False, "Start on hosts without comparing their versions and files.", is_switch=True),
    ),
    "script": (
        own("env", assignments, (), "Variable for all processes, on whichever machine; `NAME` alone takes its value from here. May be given several times.", config_key="tpu_env", separator="\n", is_secret=True),
        only_flag("drop_in", boolean, False, "Let `import accelerate` mean accel in the script and in all libraries that it uses.", is_switch=True),
    ),
    "supervision": (
        only_flag("tee", tee, None, "Output to write to files and to the terminal: 0 none, 1 stdout, 2 stderr, 3 both, or `RANK:N,RANK:N`.", other_flags=("-t",), needs=("own_ranks",)),
        only_flag("log_dir", text, None, "Folder for the files of `--tee`, which is 3 if only this is given. Default: a temporary one.", needs=("own_ranks",)),
        only_flag("prefix", boolean, False, "Begin each line of a rank with its rank, as in `[rank3] `.", is_switch=True, needs=("own_ranks",)),
        only_flag("show_ranks", ranks, None, "Ranks whose output is shown, such as `0` or `0,4-7`; `--log_dir` and reports still have that of the others.", needs=("own_ranks",), metavar="RANKS"),
        only_flag("grace_period_s", duration, 30.0, "Seconds that processes are given to end before they are killed."),
        only_flag("report", text, None, "File to write the report of a failure to, as JSON; where each machine has its own `--machine_rank` or is a SLURM node, machine 1 writes `FILE.machine-1.json` for `FILE.json`, and so on.", metavar="FILE"),
    ),
    "deepspeed": (
        deepspeed("hostfile", text, None, "File with the machines, in the form of DeepSpeed's `hostfile`."),
        deepspeed("exclusion_filter", text, None, "Machines and GPUs to leave out, such as `worker-0:1@worker-1`."),
        deepspeed("inclusion_filter", text, None, "Machines and GPUs to use, such as `worker-0:1@worker-1`."),
        deepspeed("multinode_launcher", _WAYS_OF_DEEPSPEED, "pdsh", "How the machines are reached."),
    ),
    "fp8": (
        own("fp8_override_linear_precision", three_booleans, None, "Which products are done in higher precision: forward, inputs' and weights' gradients (Transformer Engine).", config_key="fp8_config.override_linear_precision", needs=("fp8", "te")),
    ),
    "mpi": (
        only_flag("use_mpirun", boolean, False, "Start the processes with `mpirun`.", is_switch=True),
        own("mpirun_hostfile", text, None, "File that lists the machines for `mpirun`.", config_key="mpirun_config.mpirun_hostfile"),
        own("mpirun_ccl", count, 1, "Number of oneCCL worker threads.", config_key="mpirun_config.mpirun_ccl"),
    ),
    "slurm": (
        only_flag("slurm", boolean, False, "Submit a batch job instead of starting here; with --dry-run print its script.", is_switch=True, is_common=True),
        slurm("options", shell_words, None, "Further options for `sbatch`, as in `--slurm_options='--partition=gpu --time=1:00:00'`."),
        slurm("array", text, None, "Job array to submit, such as `0-9%2`."),
        slurm("requeue", boolean, False, "Put the job into the queue again when it is about to be ended.", is_switch=True),
    ),
    "ray": (
        ray("address", text, None, "Ray cluster to run on, such as `10.0.0.1:6379`; without one, a cluster on this machine is started for the run.", variable="RAY_ADDRESS"),
        ray("cpus_per_process", count, 1, "CPUs that Ray reserves for each process, in addition to one GPU each unless `--cpu` is given."),
        ray("resources", pairs, None, "Further resources for each process, such as `accelerator_type:A100=0.001`.", metavar="NAME=AMOUNT"),
        ray("runtime_env", text, None, "YAML or JSON file with Ray's `runtime_env`; with a `working_dir` there, the processes run in its copy.", metavar="FILE"),
        ray("wait_s", duration, 300.0, "Seconds to wait until the cluster has room for all processes."),
    ),
    "kubernetes": (
        kubernetes("image", text, None, "Image of the containers, with Python, accel-launch and the script."),
        kubernetes("job_name", dns_label, None, "Name of the job; made from the script's name if omitted."),
        kubernetes("namespace", dns_label, None, "Namespace of the job; that of `kubectl` if omitted."),
        kubernetes("kind", choice("jobset", "pytorchjob"), "jobset", "Resource to make: a JobSet or Kubeflow's PyTorchJob."),
        kubernetes("gpus_per_node", index, None, "GPUs of each pod; as many as it has processes if omitted, none with `--cpu`."),
        kubernetes("gpu_resource", text, "nvidia.com/gpu", "What the cluster calls its GPUs."),
        kubernetes("cpu", quantity, None, "CPUs of each pod, such as `8` or `500m`."),
        kubernetes("memory", quantity, None, "Memory of each pod, such as `64Gi`."),
        kubernetes("working_dir", text, None, "Directory in the image to run in; the image's own if omitted."),
        kubernetes("secrets", secret_references, None, "Variables that come from secrets of the cluster, such as `HF_TOKEN=hugging-face:token`, with commas between."),
        kubernetes("backoff_limit", index, 0, "How often the job is started again after a failure."),
        kubernetes("manifest", text, None, "File to write the manifest to, instead of handing it to `kubectl`.", metavar="FILE"),
    ),
    "tpu": (
        tpu("cluster", boolean, False, "Run on all machines of a TPU pod.", config_key="tpu_use_cluster", is_switch=True, needs=("tpu",)),
        only_flag("no_tpu_cluster", boolean, False, "Run on this machine of the pod only.", is_switch=True, needs=("tpu",)),
        tpu("use_sudo", boolean, False, "Run with `sudo` on the machines of the pod.", is_switch=True),
        tpu("zone", text, None, "Zone of the TPU."),
        tpu("vm", names, (), "Machine of the pod, where it is no instance group; may be given several times.", flag="--vm", metavar="NAME", separator=","),
        own("main_training_function", text, "main", "Function of the script that trains.", unset_values=("main",), needs=("tpu",)),
    ),
    "sagemaker": (
        only_flag("aws_access_key_id", text, None, "Key to sign in with; better leave it to a profile or the environment.", needs=("sagemaker",), is_secret=True),
        only_flag("aws_secret_access_key", text, None, "Secret that belongs to the key.", needs=("sagemaker",), is_secret=True),
        sagemaker("instance_type", text, None, "Kind of machine, such as `ml.g5.2xlarge`.", config_key="ec2_instance_type"),
        sagemaker("role", text, None, "IAM role that the job runs as.", config_key="iam_role_name"),
        sagemaker("image_uri", text, None, "Container to run in."),
        sagemaker("profile", text, None, "Profile of the AWS credentials."),
        sagemaker("region", text, "us-east-1", "Region."),
        sagemaker("job_name", text, "accelerate-sagemaker-1", "Start of the job's name.", config_key="base_job_name"),
        sagemaker("pytorch_version", text, "2.9.0", "Version of PyTorch."),
        sagemaker("transformers_version", text, "5.3.0", "Version of transformers."),
        sagemaker("py_version", text, "py312", "Version of Python."),
        sagemaker("inputs_file", text, None, "File with the input channels, one `NAME<tab>PLACE` per line.", config_key="sagemaker_inputs_file"),
        sagemaker("metrics_file", text, None, "File with the metrics, one `NAME<tab>PATTERN` per line.", config_key="sagemaker_metrics_file"),
    ),
}
# fmt: on

SETTINGS_OF_TOPIC: Mapping[str, tuple[Setting, ...]] = MappingProxyType(_ROWS)
