"""Where a run takes place: kind of machines, how many, how they meet; SageMaker, TPUs and their pods."""

from __future__ import annotations

from accel_launch.config.question import Answers, Question, answered, both, of_setting, yes_no
from accel_state.environment.parsers import choice, names, port, text

ENVIRONMENT = "compute_environment"
MACHINE = "?machine"

# The kinds of machines, by what the config file calls them.
MACHINES = {
    "NO": "No distributed training",
    "MULTI_CPU": "multi-CPU",
    "MULTI_GPU": "multi-GPU",
    "MULTI_XPU": "multi-XPU",
    "MULTI_HPU": "multi-HPU",
    "MULTI_NPU": "multi-NPU",
    "MULTI_MLU": "multi-MLU",
    "MULTI_SDAA": "multi-SDAA",
    "MULTI_MUSA": "multi-MUSA",
    "MULTI_NEURON": "multi-NEURON",
    "XLA": "TPU",
}
_ENVIRONMENTS = {"LOCAL_MACHINE": "This machine", "AMAZON_SAGEMAKER": "AWS (Amazon SageMaker)"}

LAUNCHER = "?launcher"
_LAUNCHERS = {
    "auto": "By this command on each machine",
    "ssh": "Over ssh, from here",
    "slurm": "As a SLURM job",
    "ray": "On a Ray cluster",
    "kubernetes": "On Kubernetes",
}
_by_hand = answered(LAUNCHER, "auto")

is_here = answered(ENVIRONMENT, "LOCAL_MACHINE")
is_sagemaker = answered(ENVIRONMENT, "AMAZON_SAGEMAKER")
is_tpu = answered(MACHINE, "XLA")
is_multi_cpu = answered(MACHINE, "MULTI_CPU")
is_plain = answered(MACHINE, "NO")


def is_multi(answers: Answers) -> bool:
    """Whether several processes on something else than TPUs are wanted."""
    return str(answers.get(MACHINE)).startswith("MULTI_")


def has_several_machines(answers: Answers) -> bool:
    """Whether more than one machine is wanted."""
    return bool(answers.get("num_machines", 1) > 1)


PLACE = (
    Question(
        ENVIRONMENT,
        "In which compute environment are you running?",
        choice(*_ENVIRONMENTS),
        "LOCAL_MACHINE",
        labels=_ENVIRONMENTS,
    ),
    Question(
        MACHINE,
        "Which type of machine are you using?",
        choice(*MACHINES),
        "NO",
        is_here,
        labels=MACHINES,
    ),
    of_setting("num_machines", "How many machines will you use?", when=is_multi),
    Question(
        LAUNCHER,
        "How are the processes started on all of them?",
        choice(*_LAUNCHERS),
        "auto",
        has_several_machines,
        labels=_LAUNCHERS,
    ),
    of_setting("hosts", "Which machines, with commas between them?", when=answered(LAUNCHER, "ssh")),
    of_setting("slurm_options", "Which options does `sbatch` get?", when=answered(LAUNCHER, "slurm")),
    of_setting("ray_address", "What is the address of the Ray cluster?", when=answered(LAUNCHER, "ray")),
    of_setting("kubernetes_image", "Which image?", when=answered(LAUNCHER, "kubernetes")),
    of_setting("machine_rank", "What is the rank of this machine?", when=_by_hand),
    Question("main_process_ip", "What is the address of the machine with rank 0?", text, "", _by_hand),
    Question("main_process_port", "Which port do the machines meet at?", port, 29500, _by_hand),
    yes_no(
        "same_network",
        "Are all machines on the same local network?",
        default=True,
        when=_by_hand,
    ),
    Question(
        "rdzv_backend",
        "How do the machines find each other?",
        choice("static", "c10d", "etcd", "etcd-v2"),
        lambda answers: "static" if answers["same_network"] else "c10d",
        _by_hand,
    ),
    yes_no("debug", "Check the operations between processes while running, for debugging?", when=is_multi),
    yes_no("use_cpu", "Run on the CPU only, even where there is an accelerator?", when=is_plain),
    yes_no("?mpirun", "Start the processes with mpirun?", when=is_multi_cpu),
    of_setting(
        "mpirun_hostfile",
        "Which file tells mpirun the machines?",
        default="~/hostfile",
        when=answered("?mpirun"),
    ),
    of_setting("mpirun_ccl", "How many oneCCL worker threads?", when=both(answered("?mpirun"), is_multi_cpu)),
)


KIND = "?sagemaker_kind"
_KINDS = {
    "NO": "No distributed training",
    "DATA_PARALLEL": "Data parallelism",
    "MODEL_PARALLEL": "Model parallelism",
}
_is_distributed = both(is_sagemaker, answered(KIND, "DATA_PARALLEL", "MODEL_PARALLEL"))

SAGEMAKER = (
    of_setting("sagemaker_profile", "Which AWS profile signs in?", default="default", when=is_sagemaker),
    of_setting("sagemaker_region", "Which region?", when=is_sagemaker),
    of_setting(
        "sagemaker_role",
        "Which IAM role does the job run as?",
        default="accelerate_sagemaker_execution_role",
        when=is_sagemaker,
    ),
    yes_no("?image", "Use a container image of your own?", when=is_sagemaker),
    of_setting("sagemaker_image_uri", "Which image?", when=answered("?image")),
    yes_no("?inputs", "Hand over input channels?", when=is_sagemaker),
    of_setting(
        "sagemaker_inputs_file",
        "Which file lists them?",
        default="sagemaker_inputs.tsv",
        when=answered("?inputs"),
    ),
    yes_no("?metrics", "Let SageMaker watch metrics?", when=is_sagemaker),
    of_setting(
        "sagemaker_metrics_file",
        "Which file lists them?",
        default="sagemaker_metrics_definition.tsv",
        when=answered("?metrics"),
    ),
    Question(
        KIND,
        "What is the distributed mode?",
        choice(*_KINDS),
        "NO",
        is_sagemaker,
        labels=_KINDS,
    ),
    of_setting(
        "sagemaker_instance_type",
        "Which kind of machine?",
        default=lambda answers: "ml.p3.2xlarge" if answers[KIND] == "NO" else "ml.p3.16xlarge",
        when=is_sagemaker,
    ),
    of_setting("num_machines", "How many machines?", when=_is_distributed),
)


_pod = both(is_tpu, answered("tpu_use_cluster"))

TPU = (
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
