"""Sizes of combined parallelisms."""

from __future__ import annotations

from accel_launch.config.question import Answers, answered, both, of_setting, yes_no

_PREFIX = "parallelism_config.parallelism_config_"
_wanted = answered("?parallelism")


def _is_possible(answers: Answers) -> bool:
    uses_fsdp2 = bool(answers.get("?fsdp")) and answers.get("fsdp_config.fsdp_version") == 2
    return uses_fsdp2 or bool(answers.get("?deepspeed"))


def _more_than_one(kind: str, answers: Answers) -> bool:
    return bool(answers.get(f"{_PREFIX}{kind}_size", 1) > 1)


def _has_stages(answers: Answers) -> bool:
    return _more_than_one("pp", answers)


def _has_context(answers: Answers) -> bool:
    return _more_than_one("cp", answers)


def _has_sequence(answers: Answers) -> bool:
    return _more_than_one("sp", answers)


QUESTIONS = (
    yes_no("?parallelism", "Combine several parallelisms (ParallelismConfig)?", when=_is_possible),
    of_setting("parallelism_dp_replicate_size", "How many full copies of the model?", when=_wanted),
    of_setting("parallelism_dp_shard_size", "How many shards of each copy?", when=_wanted),
    of_setting("parallelism_tp_size", "How many processes share each layer (tensor parallel)?", when=_wanted),
    of_setting(
        "parallelism_pp_size",
        "Among how many processes are the blocks of the model divided (pipeline parallel)?",
        when=_wanted,
    ),
    of_setting(
        "parallelism_pp_schedule", "In which order do its stages compute?", when=both(_wanted, _has_stages)
    ),
    of_setting(
        "parallelism_cp_size", "How many processes share each sequence (context parallel)?", when=_wanted
    ),
    of_setting(
        "parallelism_cp_comm_strategy", "How do keys and values travel?", when=both(_wanted, _has_context)
    ),
    of_setting(
        "parallelism_sp_size",
        "How many processes share each sequence by attention heads (Ulysses)?",
        when=both(_wanted, answered("?deepspeed")),
    ),
    yes_no(
        f"{_PREFIX}sp_seq_length_is_variable",
        "Does the length of the sequences differ from batch to batch?",
        default=True,
        when=both(_wanted, _has_sequence),
    ),
    of_setting(
        "parallelism_sp_seq_length",
        "How long are the sequences?",
        default=1024,
        when=answered(f"{_PREFIX}sp_seq_length_is_variable", False),
    ),
    of_setting(
        "parallelism_sp_attn_implementation", "Around which attention?", when=both(_wanted, _has_sequence)
    ),
)
