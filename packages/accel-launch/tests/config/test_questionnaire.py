from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from accel_launch.config.file import ALIASES, PLAIN_KEYS, SECTIONS
from accel_launch.config.questionnaire import QUESTIONS, fill_in
from accel_launch.launchers.selection import select_launcher
from accel_launch.options import OPTIONS
from accel_launch.unused_settings import unused_settings

KNOWN = {*PLAIN_KEYS, *(f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys)}


class ByText:
    """Answers questions by their text, everything else with the default."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []

    def text(self, question: str, *, default: str) -> str:
        self.asked.append(question)
        found = [answer for text, answer in self.answers.items() if text in question]
        return found[0] if found else default

    def choice(self, question: str, labels: Sequence[str], *, default: int) -> int:
        answer = self.text(question, default=labels[default])
        return list(labels).index(answer)

    def say(self, line: str) -> None:
        raise AssertionError(f"an answer was refused: {line}")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)
def test_every_question_is_about_a_key_of_the_file_or_steers(question):
    assert question.key.startswith("?") or (question.key in KNOWN and question.key not in ALIASES)
    assert question.text.strip() == question.text
    assert not callable(question.default) or question.default.__name__ == "<lambda>"


def test_defaults_all_the_way_ask_little():
    asker = ByText({})
    values = fill_in(asker)
    assert len(asker.asked) == 8
    assert values["distributed_type"] == "NO"
    assert values["compute_environment"] == "LOCAL_MACHINE"
    assert not any("." in key for key in values)  # no section was opened


@pytest.mark.parametrize(
    ("answers", "expected", "absent"),
    [
        (
            {"type of machine": "multi-CPU", "How many processes": "2"},
            {"use_cpu": True, "num_processes": 2},
            "gpu_ids",
        ),
        (
            {
                "type of machine": "multi-GPU",
                "machines will": "2",
                "rank of this": "1",
                "address": "10.0.0.1",
            },
            {
                "machine_rank": 1,
                "main_process_ip": "10.0.0.1",
                "main_process_port": 29500,
                "num_processes": 2,
            },
            "gpu_ids",
        ),
        (
            {"type of machine": "multi-GPU", "(FSDP)": "yes", "Which version": "1"},
            {
                "distributed_type": "FSDP",
                "fsdp_config.fsdp_reshard_after_forward": "FULL_SHARD",
                "fsdp_config.fsdp_sync_module_states": True,
            },
            "fsdp_config.fsdp_activation_checkpointing_offload",
        ),
        (
            {
                "type of machine": "multi-GPU",
                "(FSDP)": "yes",
                "ParallelismConfig": "yes",
                "tensor parallel": "2",
            },
            {
                "fsdp_config.fsdp_reshard_after_forward": True,
                "parallelism_config.parallelism_config_tp_size": 2,
            },
            "parallelism_config.parallelism_config_sp_size",
        ),
        (
            {
                "DeepSpeed?": "yes",
                "ZeRO": "3",
                "Where to keep optimizer": "nvme",
                "which norm": "0.5",
                "Clip": "yes",
            },
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config.zero_stage": 3,
                "deepspeed_config.offload_optimizer_nvme_path": "/nvme",
                "deepspeed_config.gradient_clipping": 0.5,
            },
            "deepspeed_config.deepspeed_config_file",
        ),
        (
            {"DeepSpeed?": "yes", "JSON file": "yes"},
            {"deepspeed_config.deepspeed_config_file": "ds_config.json"},
            "deepspeed_config.zero_stage",
        ),
        (
            {"type of machine": "multi-GPU", "Megatron": "yes", "share each layer": "2"},
            {"distributed_type": "MEGATRON_LM", "megatron_lm_config.megatron_lm_sequence_parallelism": True},
            "megatron_lm_config.megatron_lm_num_micro_batches",
        ),
        (
            {"type of machine": "TPU", "pod?": "yes", "TPU called": "t", "zone": "z", "precision?": "bf16"},
            {
                "distributed_type": "XLA",
                "tpu_name": "t",
                "tpu_zone": "z",
                "downcast_bf16": False,
                "num_processes": 8,
            },
            "gpu_ids",
        ),
        (
            {"precision?": "fp8", "8-bit arithmetic": "AO"},
            {"fp8_config.backend": "AO", "fp8_config.pad_inner_dim": True},
            "fp8_config.margin",
        ),
        (
            {"compute environment": "AWS (Amazon SageMaker)", "distributed mode": "Data parallelism"},
            {"distributed_type": "DATA_PARALLEL", "ec2_instance_type": "ml.p3.16xlarge", "num_machines": 1},
            "num_processes",
        ),
        (
            {"type of machine": "multi-CPU", "mpirun?": "yes"},
            {"mpirun_config.mpirun_hostfile": "~/hostfile", "mpirun_config.mpirun_ccl": 1},
            "?mpirun",
        ),
    ],
)
def test_only_what_matters_for_the_answers_is_asked_and_written(answers, expected, absent):
    values = fill_in(ByText(answers))
    assert expected.items() <= values.items()
    assert absent not in values


def test_a_lower_zero_stage_gets_fewer_questions():
    asked = [ByText({"DeepSpeed?": "yes", "ZeRO": stage}) for stage in ("0", "2", "3")]
    for asker in asked:
        fill_in(asker)
    about_parameters = [any("keep parameters" in text for text in asker.asked) for asker in asked]
    about_optimizer = [any("keep optimizer" in text for text in asker.asked) for asker in asked]
    assert (about_parameters, about_optimizer) == ([False, False, True], [False, True, True])


def test_every_group_of_settings_with_keys_is_covered():
    """Each section of the file, and each plain key that only a person can know."""
    asked = {question.key for question in QUESTIONS}
    sections = {key.partition(".")[0] for key in asked if "." in key}
    assert sections == set(SECTIONS) - {"ipex_config"}
    plain = {s.config_key for s in OPTIONS if s.config_key and "." not in s.config_key}
    # what SageMaker's own defaults decide, as usual, and what is written by hand
    of_sagemaker = {"base_job_name", "pytorch_version", "transformers_version", "py_version"}
    assert plain - asked == of_sagemaker | {"launcher", "share_gpus"}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, {"main_process_port": 29500, "rdzv_backend": "static"}),
        ({"all of them": "Over ssh, from here", "Which machines": "h1,h2"}, {"hosts": "h1,h2"}),
        (
            {"all of them": "As a SLURM job", "sbatch": "--partition=gpu"},
            {"launcher": "slurm", "slurm_config.slurm_options": "--partition=gpu"},
        ),
        (
            {"all of them": "On a Ray cluster", "Ray": "10.0.0.1:6379"},
            {"launcher": "ray", "ray_config.ray_address": "10.0.0.1:6379"},
        ),
        (
            {"all of them": "On Kubernetes", "image": "image:1"},
            {"launcher": "kubernetes", "kubernetes_config.kubernetes_image": "image:1"},
        ),
    ],
)
def test_several_machines_are_started_as_configured(request_for, answers, expected):
    """What is said by hand is asked only where a person does it, and the file has an effect as it is."""
    values = fill_in(
        ByText({"type of machine": "multi-GPU", "How many machines": "2", "processes in all": "4"} | answers)
    )
    assert expected.items() <= values.items()
    assert ("machine_rank" in values) is (not answers)
    name = select_launcher(request_for(config=values, gpus=("0", "1"))).name
    assert name == {"hosts": "ssh"}.get(next(iter(expected)), values.get("launcher", "machines"))
    assert unused_settings(request_for(config=values, gpus=("0", "1"))) == []
