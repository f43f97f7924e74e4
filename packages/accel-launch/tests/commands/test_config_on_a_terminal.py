"""``accel config`` as a person meets it: through a real pseudo-terminal, keys in, a file out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect
import pytest

from accel_launch.cli import main
from accel_launch.config.file import read_config

DOWN = "\x1b[B"
UP = "\x1b[A"
ENTER = "\r"

# What is asked, in this order and nothing else, and the keys that answer it.
ROUTES: dict[str, tuple[list[tuple[str, str]], dict[str, object]]] = {
    "one_process": (
        [
            ("compute environment", ENTER),
            ("type of machine", ENTER),
            ("CPU only", "yes" + ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", ENTER),
            ("mixed precision", DOWN + DOWN + ENTER),
        ],
        {"distributed_type": "NO", "use_cpu": True, "mixed_precision": "bf16"},
    ),
    "multi_cpu": (
        [
            ("compute environment", "0" + ENTER),
            ("type of machine", DOWN + ENTER),
            ("How many machines", ENTER),
            ("Check the operations", "yes" + ENTER),
            ("mpirun", ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", ENTER),
            ("FSDP", ENTER),
            ("How many processes", "4" + ENTER),
            ("mixed precision", ENTER),
        ],
        {"distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 4, "debug": True},
    ),
    "multi_gpu_compiled": (
        [
            ("compute environment", ENTER),
            ("type of machine", "2" + ENTER),
            ("How many machines", ENTER),
            ("Check the operations", ENTER),
            ("torch.compile", "yes" + ENTER),
            ("Which compiler", ENTER),
            ("further settings", "yes" + ENTER),
            ("optimise for", DOWN + DOWN + ENTER),
            ("single graph", "yes" + ENTER),
            ("changing shapes", ENTER),
            ("repeated blocks", ENTER),
            ("DeepSpeed", ENTER),
            ("FSDP", ENTER),
            ("Megatron", ENTER),
            ("How many processes", "two" + ENTER),
            ("must be a whole number of at least 1", "2" + ENTER),
            ("Which GPUs", "0,1" + ENTER),
            ("CPU cores", "yes" + ENTER),
            ("mixed precision", "1" + ENTER),
        ],
        {
            "distributed_type": "MULTI_GPU",
            "dynamo_config.dynamo_backend": "INDUCTOR",
            "dynamo_config.dynamo_mode": "max-autotune",
            "dynamo_config.dynamo_use_fullgraph": True,
            "gpu_ids": "0,1",
            "enable_cpu_affinity": True,
            "mixed_precision": "fp16",
        },
    ),
    "several_machines": (
        [
            ("compute environment", ENTER),
            ("type of machine", "2" + ENTER),
            ("How many machines", "2" + ENTER),
            ("on all of them", ENTER),
            ("rank of this machine", "1" + ENTER),
            ("address of the machine", "10.0.0.1" + ENTER),
            ("Which port", "29511" + ENTER),
            ("same local network", "no" + ENTER),
            ("find each other", ENTER),
            ("Check the operations", ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", ENTER),
            ("FSDP", ENTER),
            ("Megatron", ENTER),
            ("How many processes", "8" + ENTER),
            ("CPU cores", ENTER),
            ("mixed precision", ENTER),
        ],
        {
            "num_machines": 2,
            "machine_rank": 1,
            "main_process_ip": "10.0.0.1",
            "main_process_port": 29511,
            "same_network": False,
            "rdzv_backend": "c10d",
            "num_processes": 8,
        },
    ),
    "mpi": (
        [
            ("compute environment", ENTER),
            ("type of machine", "1" + ENTER),
            ("How many machines", ENTER),
            ("Check the operations", ENTER),
            ("mpirun", "yes" + ENTER),
            ("Which file lists mpirun", "/etc/hosts.mpi" + ENTER),
            ("oneCCL", "2" + ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", ENTER),
            ("FSDP", ENTER),
            ("How many processes", "2" + ENTER),
            ("mixed precision", ENTER),
        ],
        {"mpirun_config.mpirun_hostfile": "/etc/hosts.mpi", "mpirun_config.mpirun_ccl": 2},
    ),
    "deepspeed": (
        [
            ("compute environment", ENTER),
            ("type of machine", "2" + ENTER),
            ("How many machines", ENTER),
            ("Check the operations", ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", "yes" + ENTER),
            ("JSON file", ENTER),
            ("ZeRO stage", "3" + ENTER),
            ("keep optimizer states", DOWN + ENTER),
            ("keep parameters", DOWN + DOWN + ENTER),
            ("NVMe folder for parameters", ENTER),
            ("batches per optimizer step", "4" + ENTER),
            ("Clip gradients", "yes" + ENTER),
            ("which norm", ENTER),
            ("16-bit weights", "yes" + ENTER),
            ("zero.Init", ENTER),
            ("mixture-of-experts", "yes" + ENTER),
            ("Which classes", "MixtralSparseMoeBlock" + ENTER),
            ("ParallelismConfig", ENTER),
            ("How many processes", "2" + ENTER),
            ("Which GPUs", ENTER),
            ("CPU cores", ENTER),
            ("mixed precision", ENTER),
        ],
        {
            "distributed_type": "DEEPSPEED",
            "deepspeed_config.zero_stage": 3,
            "deepspeed_config.offload_optimizer_device": "cpu",
            "deepspeed_config.offload_param_device": "nvme",
            "deepspeed_config.offload_param_nvme_path": "/nvme",
            "deepspeed_config.gradient_accumulation_steps": 4,
            "deepspeed_config.gradient_clipping": 1.0,
        },
    ),
    "deepspeed_json": (
        [
            ("compute environment", ENTER),
            ("type of machine", ENTER),
            ("CPU only", ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", "yes" + ENTER),
            ("JSON file", "yes" + ENTER),
            ("Where is it", "/tmp/zero.json" + ENTER),
            ("zero.Init", "yes" + ENTER),
            ("ParallelismConfig", ENTER),
            ("Which GPUs", ENTER),
            ("CPU cores", ENTER),
            ("mixed precision", ENTER),
        ],
        {
            "deepspeed_config.deepspeed_config_file": "/tmp/zero.json",
            "deepspeed_config.zero3_init_flag": True,
        },
    ),
    "fsdp1": (
        [
            ("compute environment", ENTER),
            ("type of machine", "2" + ENTER),
            ("How many machines", ENTER),
            ("Check the operations", ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", ENTER),
            ("FSDP", "yes" + ENTER),
            ("Which version", UP + ENTER),
            ("to be sharded", "3" + ENTER),
            ("gradients on the CPU", ENTER),
            ("cut into units", DOWN + ENTER),
            ("From how many parameters", "2000" + ENTER),
            ("fetches the next unit", ENTER),
            ("checkpoints to be written", ENTER),
            ("during the forward pass", ENTER),
            ("original parameters", ENTER),
            ("on one process only", "no" + ENTER),
            ("parameters of rank 0", ENTER),
            ("Compute activations again", ENTER),
            ("How many processes", "2" + ENTER),
            ("Which GPUs", ENTER),
            ("CPU cores", ENTER),
            ("mixed precision", ENTER),
        ],
        {
            "distributed_type": "FSDP",
            "fsdp_config.fsdp_version": 1,
            "fsdp_config.fsdp_reshard_after_forward": "HYBRID_SHARD",
            "fsdp_config.fsdp_min_num_params": 2000,
            "fsdp_config.fsdp_backward_prefetch_policy": "BACKWARD_PRE",
            "fsdp_config.fsdp_sync_module_states": True,
        },
    ),
    "fsdp2_with_sizes": (
        [
            ("compute environment", ENTER),
            ("type of machine", "1" + ENTER),
            ("How many machines", ENTER),
            ("Check the operations", ENTER),
            ("mpirun", ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", ENTER),
            ("FSDP", "yes" + ENTER),
            ("Which version", ENTER),
            ("after the forward pass", "no" + ENTER),
            ("gradients on the CPU", ENTER),
            ("cut into units", ENTER),
            ("_no_split_modules", "no" + ENTER),
            ("Which classes of layers", "BertLayer,GPTJBlock" + ENTER),
            ("checkpoints to be written", DOWN + ENTER),
            ("on one process only", ENTER),
            ("Compute activations again", "yes" + ENTER),
            ("inputs of these layers", "yes" + ENTER),
            ("ParallelismConfig", "yes" + ENTER),
            ("full copies", ENTER),
            ("shards of each copy", "2" + ENTER),
            ("tensor parallel", "2" + ENTER),
            ("pipeline parallel", ENTER),
            ("expert parallel", "2" + ENTER),
            ("context parallel", ENTER),
            ("How many processes", "4" + ENTER),
            ("mixed precision", ENTER),
        ],
        {
            "fsdp_config.fsdp_version": 2,
            "fsdp_config.fsdp_reshard_after_forward": False,
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "BertLayer,GPTJBlock",
            "fsdp_config.fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_config.fsdp_activation_checkpointing_offload": True,
            "parallelism_config.parallelism_config_tp_size": 2,
            "parallelism_config.parallelism_config_ep_size": 2,
        },
    ),
    "megatron_fp8": (
        [
            ("compute environment", ENTER),
            ("type of machine", "2" + ENTER),
            ("How many machines", ENTER),
            ("Check the operations", ENTER),
            ("torch.compile", ENTER),
            ("DeepSpeed", ENTER),
            ("FSDP", ENTER),
            ("Megatron", "yes" + ENTER),
            ("share each layer", "2" + ENTER),
            ("along the sequence", ENTER),
            ("How many stages", "2" + ENTER),
            ("how many pieces", "4" + ENTER),
            ("chosen activations", ENTER),
            ("Shard optimizer states", ENTER),
            ("To which norm", ENTER),
            ("How many processes", "4" + ENTER),
            ("Which GPUs", ENTER),
            ("CPU cores", ENTER),
            ("mixed precision", UP + ENTER),
            ("8-bit arithmetic", DOWN + ENTER),
            ("Gather sharded parameters", ENTER),
            ("Pad matrices", ENTER),
        ],
        {
            "distributed_type": "MEGATRON_LM",
            "megatron_lm_config.megatron_lm_num_micro_batches": 4,
            "mixed_precision": "fp8",
            "fp8_config.backend": "AO",
        },
    ),
    "tpu_pod": (
        [
            ("compute environment", ENTER),
            ("type of machine", "a" + ENTER),
            ("torch.compile", ENTER),
            ("function of the script", ENTER),
            ("TPU pod", "yes" + ENTER),
            ("TPU called", "my-pod" + ENTER),
            ("which zone", "us-central1-a" + ENTER),
            ("with sudo", ENTER),
            ("one by one", ENTER),
            ("Which variables", "A=1,B=2" + ENTER),
            ("Run commands", "yes" + ENTER),
            ("in a file", ENTER),
            ("Which commands", "pip list,ls" + ENTER),
            ("How many processes", ENTER),
            ("mixed precision", "2" + ENTER),
            ("Make doubles float32", ENTER),
        ],
        {
            "distributed_type": "XLA",
            "tpu_use_cluster": True,
            "tpu_name": "my-pod",
            "tpu_env": ["A=1", "B=2"],
            "commands": ["pip list", "ls"],
            "num_processes": 8,
        },
    ),
    "sagemaker": (
        [
            ("compute environment", DOWN + ENTER),
            ("profile", ENTER),
            ("region", "eu-west-1" + ENTER),
            ("IAM role", "role" + ENTER),
            ("container image", ENTER),
            ("input channels", "yes" + ENTER),
            ("lists them", ENTER),
            ("metrics", ENTER),
            ("distributed mode", DOWN + ENTER),
            ("kind of machine", ENTER),
            ("How many machines", "2" + ENTER),
            ("torch.compile", ENTER),
            ("mixed precision", ENTER),
        ],
        {
            "compute_environment": "AMAZON_SAGEMAKER",
            "distributed_type": "DATA_PARALLEL",
            "region": "eu-west-1",
            "ec2_instance_type": "ml.p3.16xlarge",
            "sagemaker_inputs_file": "sagemaker_inputs.tsv",
            "num_machines": 2,
        },
    ),
}


@pytest.fixture
def terminal(tmp_path):
    """Start ``accel config`` on a pseudo-terminal; what is still running at the end is ended."""
    started: list[pexpect.spawn] = []

    def start(path: Path, dimensions: tuple[int, int] = (40, 120)) -> pexpect.spawn:
        child = pexpect.spawn(
            sys.executable,
            ["-m", "accel_launch", "config", "--config_file", str(path)],
            env={
                "TERM": "xterm",
                "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers here when a menu asks where the cursor is
                "HF_HOME": str(tmp_path),
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
            encoding="utf-8",
            timeout=60,
            dimensions=dimensions,
        )
        child.delaybeforesend = None  # what is typed early is kept
        started.append(child)
        return child

    yield start
    for child in started:
        child.close(force=True)


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_asks_what_matters_and_writes_a_file_that_loads(terminal, tmp_path, route, capsys):
    steps, expected = ROUTES[route]
    path = tmp_path / "c.yaml"
    child = terminal(path)
    for question, keys in steps:
        child.expect_exact(question)
        assert not path.exists()  # nothing before the end
        child.send(keys)
    child.expect_exact(f"The configuration is saved at `{path}`.")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    values = read_config(path).values
    assert {key: values.get(key) for key in expected} == expected
    _stays_the_same(path)


def _stays_the_same(path: Path) -> None:
    before = path.read_text()
    assert main(["config", "update", "--config_file", str(path)]) == 0
    assert path.read_text() == before


@pytest.mark.parametrize("key", ["c", "d"])
def test_ctrl_c_and_ctrl_d_write_nothing_and_leave_the_terminal_as_it_was(terminal, tmp_path, key):
    path = tmp_path / "c.yaml"
    child = terminal(path)
    child.expect_exact("compute environment")
    child.expect_exact("AWS")
    child.sendcontrol(key)
    child.expect_exact("Interrupted; nothing was written.")
    child.expect(pexpect.EOF)
    assert child.getecho()
    child.wait()
    assert child.exitstatus == 130
    assert not path.exists()


def test_labels_that_are_wider_than_the_terminal_are_shortened(terminal, tmp_path):
    child = terminal(tmp_path / "c.yaml", dimensions=(40, 14))
    child.expect_exact("AWS")
    child.send(DOWN)
    child.expect_exact("> ")
    child.send(DOWN + ENTER)
    child.expect_exact("a) TPU")  # the question, too, takes several lines


def test_a_menu_higher_than_the_terminal_moves_with_the_choice(terminal, tmp_path):
    child = terminal(tmp_path / "c.yaml", dimensions=(8, 120))
    child.expect_exact("AWS")
    child.send(ENTER)
    child.expect_exact("type of machine")
    child.send(UP)  # from the first to the last
    child.expect_exact("> ")
    child.expect_exact("TPU")
    child.send(ENTER)
    child.expect_exact("torch.compile")
