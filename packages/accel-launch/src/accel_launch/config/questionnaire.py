"""The questionnaire: one row a question, in the order in which they are asked, and the config file that follows."""

# ruff: noqa: E501 -- a row is a line
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accel_launch.config.prompts import Asker
from accel_launch.options import OPTIONS
from accel_state.enums import DynamoBackend
from accel_state.environment import find_setting
from accel_state.environment.parsers import Parser, boolean, choice, names, numbered, port
from accel_state.environment.parsers import text as any_text

Answers = Mapping[str, Any]
Condition = Callable[[Answers], bool]
_SETTINGS = {setting.name: setting for setting in OPTIONS}
_MOST_CHOICES = 20


def always(answers: Answers) -> bool:
    """Ask whatever was answered before."""
    return True


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its key in the config file, and the condition on which it is asked.

    A ``key`` that starts with ``?`` only steers the questions after it. ``labels`` are the words for choices that
    differ from their values. ``default`` may be a function of the answers so far.
    """

    key: str
    text: str
    parse: Parser = any_text
    default: Any = ""
    when: Condition = always
    labels: Mapping[str, str] | None = None

    def choices(self) -> tuple[str, ...] | None:
        """Return the values to choose among, None where a line is typed."""
        words = self.parse.choices if self.labels is None else tuple(self.labels)
        return words if words is not None and len(words) <= _MOST_CHOICES else None

    def ask(self, asker: Asker, answers: Answers) -> Any:
        """Ask until there is an answer that can be used, and return its value."""
        default = self.default(answers) if callable(self.default) else self.default
        if (choices := self.choices()) is not None:
            shown = [self.labels[word] if self.labels else word for word in choices]
            return self.parse(choices[asker.choice(self.text, shown, default=choices.index(str(default)))])
        question = f"{self.text} [yes/no]" if self.parse is boolean else self.text
        while True:
            given = asker.text(question, default=_shown(default))
            if not given and default == "" and self.parse is any_text:
                return ""
            try:
                return self.parse(given)
            except (ValueError, KeyError):
                asker.say(f"`{given}` cannot be used: it must be {self.parse.accepts}.")


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(map(str, default)) if isinstance(default, (tuple, list)) else str(default)


def of_setting(
    name: str,
    text: str | None = None,
    when: Condition = always,
    default: Any = None,
    parse: Parser | None = None,
) -> Question:
    """Return the question for a setting: its words, parser and default come from the table."""
    setting = _SETTINGS[name]
    assert setting.config_key is not None
    fallback = "" if setting.default is None else setting.default
    return Question(
        setting.config_key,
        text or setting.help.removesuffix("."),
        parse or setting.parse,
        fallback if default is None else default,
        when,
    )


def yes_no(key: str, text: str, when: Condition = always, *, default: bool = False) -> Question:
    """Return a question that is answered with yes or no."""
    return Question(key, text, boolean, default, when)


def answered(key: str, *values: Any) -> Condition:
    """Return a condition: the question ``key`` was asked, and answered with one of ``values`` (yes if none)."""
    return lambda answers: answers.get(key) in (values or (True,))


def both(*conditions: Condition) -> Condition:
    """Return a condition that holds where all of ``conditions`` do."""
    return lambda answers: all(condition(answers) for condition in conditions)


def _more_than_one(key: str) -> Condition:
    return lambda answers: bool(answers.get(key, 1) > 1)


# fmt: off
_ENVIRONMENTS = {"LOCAL_MACHINE": "This machine", "AMAZON_SAGEMAKER": "AWS (Amazon SageMaker)"}
_MACHINES = {"NO": "No distributed training"} | {f"MULTI_{name}": f"multi-{name}" for name in ("CPU", "GPU", "XPU", "HPU", "NPU", "MLU", "SDAA", "MUSA", "NEURON")} | {"XLA": "TPU"}
_LAUNCHERS = {"auto": "By this command on each machine", "ssh": "Over ssh, from here", "slurm": "As a SLURM job", "ray": "On a Ray cluster", "kubernetes": "On Kubernetes"}
_KINDS = {"NO": "No distributed training", "DATA_PARALLEL": "Data parallelism", "MODEL_PARALLEL": "Model parallelism"}
_ENGINES = {"?deepspeed": "DEEPSPEED", "?fsdp": "FSDP", "?megatron": "MEGATRON_LM"}
_WITH_GPU_IDS = ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA")

_here, _sagemaker = answered("compute_environment", "LOCAL_MACHINE"), answered("compute_environment", "AMAZON_SAGEMAKER")
_cpu, _gpu = answered("?machine", "MULTI_CPU"), answered("?machine", "MULTI_GPU")
_plain, _tpu = answered("?machine", "NO"), answered("?machine", "XLA")
_by_hand, _machines = answered("?launcher", "auto"), _more_than_one("num_machines")


def _multi(answers: Answers) -> bool:
    return str(answers.get("?machine")).startswith("MULTI_")


def _gpu_ids(answers: Answers) -> bool:
    return answers.get("?machine") in _WITH_GPU_IDS and not answers.get("use_cpu") and not _machines(answers)


_pod = both(_tpu, answered("tpu_use_cluster"))
_deepspeed, _fsdp, _megatron, _combined = answered("?deepspeed"), answered("?fsdp"), answered("?megatron"), answered("?parallelism")
_ds_file, _ds = answered("?deepspeed_json", True), answered("?deepspeed_json", False)
_zero2, _zero3 = both(_ds, answered("deepspeed_config.zero_stage", 2, 3)), both(_ds, answered("deepspeed_config.zero_stage", 3))
_ds_machines, _ds_filter = both(_deepspeed, _machines), answered("?deepspeed_filter")
_v1, _v2 = both(_fsdp, answered("fsdp_config.fsdp_version", 1)), both(_fsdp, answered("fsdp_config.fsdp_version", 2))
_WRAP, _LOADING, _CHECKPOINTING = "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_cpu_ram_efficient_loading", "fsdp_config.fsdp_activation_checkpointing"
_SIZES = "parallelism_config.parallelism_config_"
_ulysses = both(_combined, _more_than_one(f"{_SIZES}sp_size"))
_dynamo, _dynamo_all = answered("?dynamo"), both(answered("?dynamo"), answered("?dynamo_custom"))
_te, _ao = answered("fp8_config.backend", "TE"), answered("fp8_config.backend", "AO")

QUESTIONS: tuple[Question, ...] = (
    Question("compute_environment", "In which compute environment are you running?", choice(*_ENVIRONMENTS), "LOCAL_MACHINE", labels=_ENVIRONMENTS),
    Question("?machine", "Which type of machine are you using?", choice(*_MACHINES), "NO", _here, _MACHINES),
    of_setting("num_machines", "How many machines will you use?", _multi),
    Question("?launcher", "How are the processes started on all of them?", choice(*_LAUNCHERS), "auto", _machines, _LAUNCHERS),
    of_setting("hosts", "Which machines, with commas between them?", answered("?launcher", "ssh")),
    of_setting("slurm_options", "Which options does `sbatch` get?", answered("?launcher", "slurm")),
    of_setting("ray_address", "What is the address of the Ray cluster?", answered("?launcher", "ray")),
    of_setting("kubernetes_image", "Which image?", answered("?launcher", "kubernetes")),
    of_setting("machine_rank", "What is the rank of this machine?", _by_hand),
    Question("main_process_ip", "What is the address of the machine with rank 0?", any_text, "", _by_hand),
    Question("main_process_port", "Which port do the machines meet at?", port, 29500, _by_hand),
    yes_no("same_network", "Are all machines on the same local network?", _by_hand, default=True),
    Question("rdzv_backend", "How do the machines find each other?", choice("static", "c10d", "etcd", "etcd-v2"), lambda answers: "static" if answers["same_network"] else "c10d", _by_hand),
    yes_no("debug", "Check the operations between processes while running, for debugging?", _multi),
    yes_no("use_cpu", "Run on the CPU only, even where there is an accelerator?", _plain),
    yes_no("?mpirun", "Start the processes with mpirun?", _cpu),
    of_setting("mpirun_hostfile", "Which file lists mpirun's machines?", answered("?mpirun"), "~/hostfile"),
    of_setting("mpirun_ccl", "How many oneCCL worker threads?", both(answered("?mpirun"), _cpu)),
    # SageMaker
    of_setting("sagemaker_profile", "Which AWS profile signs in?", _sagemaker, "default"),
    of_setting("sagemaker_region", "Which region?", _sagemaker),
    of_setting("sagemaker_role", "Which IAM role does the job run as?", _sagemaker, "accelerate_sagemaker_execution_role"),
    yes_no("?image", "Use a container image of your own?", _sagemaker),
    of_setting("sagemaker_image_uri", "Which image?", answered("?image")),
    yes_no("?inputs", "Hand over input channels?", _sagemaker),
    of_setting("sagemaker_inputs_file", "Which file lists them?", answered("?inputs"), "sagemaker_inputs.tsv"),
    yes_no("?metrics", "Should SageMaker watch metrics?", _sagemaker),
    of_setting("sagemaker_metrics_file", "Which file lists them?", answered("?metrics"), "sagemaker_metrics_definition.tsv"),
    Question("?sagemaker_kind", "What is the distributed mode?", choice(*_KINDS), "NO", _sagemaker, _KINDS),
    of_setting("sagemaker_instance_type", "Which kind of machine?", _sagemaker, lambda answers: "ml.p3.2xlarge" if answers["?sagemaker_kind"] == "NO" else "ml.p3.16xlarge"),
    of_setting("num_machines", "How many machines?", both(_sagemaker, answered("?sagemaker_kind", "DATA_PARALLEL", "MODEL_PARALLEL"))),
    # Compilation
    yes_no("?dynamo", "Compile the model with torch.compile?"),
    of_setting("dynamo_backend", "Which compiler?", _dynamo, "INDUCTOR", choice(*(name for name in DynamoBackend.list() if name != "NO"))),
    yes_no("?dynamo_custom", "Choose its further settings?", _dynamo),
    of_setting("dynamo_mode", "What is it to optimise for?", _dynamo_all),
    yes_no("dynamo_config.dynamo_use_fullgraph", "Fail where the model is no single graph?", _dynamo_all),
    yes_no("dynamo_config.dynamo_use_dynamic", "Compile for changing shapes?", _dynamo_all),
    yes_no("dynamo_config.dynamo_use_regional_compilation", "Compile the repeated blocks one by one?", _dynamo_all),
    # DeepSpeed
    yes_no("?deepspeed", "Train with DeepSpeed?", lambda answers: _here(answers) and not _tpu(answers)),
    yes_no("?deepspeed_json", "Use a JSON file of DeepSpeed's own?", _deepspeed),
    Question("deepspeed_config.deepspeed_config_file", "Where is it?", any_text, "ds_config.json", _ds_file),
    of_setting("deepspeed_zero_stage", "What is to be sharded (ZeRO stage)?", _ds),
    of_setting("deepspeed_offload_optimizer_device", "Where to keep optimizer states?", _zero2),
    of_setting("deepspeed_offload_param_device", "Where to keep parameters?", _zero3),
    of_setting("deepspeed_offload_optimizer_nvme_path", "Which NVMe folder for optimizer states?", answered("deepspeed_config.offload_optimizer_device", "nvme"), "/nvme"),
    of_setting("deepspeed_offload_param_nvme_path", "Which NVMe folder for parameters?", answered("deepspeed_config.offload_param_device", "nvme"), "/nvme"),
    of_setting("gradient_accumulation_steps", "How many batches per optimizer step?", _ds, 1),
    yes_no("?clipping", "Clip gradients?", _ds),
    of_setting("gradient_clipping", "To which norm?", answered("?clipping"), 1.0),
    yes_no("deepspeed_config.zero3_save_16bit_model", "Gather the 16-bit weights when the model is saved?", _zero3),
    yes_no("deepspeed_config.zero3_init_flag", "Build the model sharded from the start (deepspeed.zero.Init)?", lambda answers: _zero3(answers) or _ds_file(answers)),
    yes_no("?moe", "Does the model have mixture-of-experts layers?", _zero3),
    of_setting("deepspeed_moe_layer_cls_names", "Which classes are they, with commas between them?", answered("?moe")),
    of_setting("deepspeed_multinode_launcher", "How does DeepSpeed reach the machines?", _ds_machines),
    of_setting("deepspeed_hostfile", "Which hostfile?", lambda answers: _ds_machines(answers) and answers.get("deepspeed_config.deepspeed_multinode_launcher") != "standard", "/job/hostfile"),
    yes_no("?deepspeed_filter", "Leave some of its machines or GPUs out?", _ds_machines),
    of_setting("deepspeed_exclusion_filter", "Which ones to leave out?", _ds_filter),
    of_setting("deepspeed_inclusion_filter", "Which ones to use?", lambda answers: _ds_filter(answers) and not answers.get("deepspeed_config.deepspeed_exclusion_filter")),
    # FSDP. With version 1 `fsdp_reshard_after_forward` holds the strategy: that is how the newest files have it.
    yes_no("?fsdp", "Train with fully sharded data parallel (FSDP)?", lambda answers: _multi(answers) and not _deepspeed(answers)),
    of_setting("fsdp_version", "Which version of FSDP?", _fsdp, 2),
    Question("fsdp_config.fsdp_reshard_after_forward", "What is to be sharded?", find_setting("fsdp_sharding_strategy").parse, "FULL_SHARD", _v1),
    yes_no("fsdp_config.fsdp_reshard_after_forward", "Reshard the parameters after the forward pass?", _v2, default=True),
    yes_no("fsdp_config.fsdp_offload_params", "Keep parameters and gradients on the CPU?", _fsdp),
    of_setting("fsdp_auto_wrap_policy", "How is the model to be cut into units?", _fsdp, "TRANSFORMER_BASED_WRAP"),
    yes_no("?fsdp_no_split", "By the model's own `_no_split_modules` (transformers)?", both(_fsdp, answered(_WRAP, "TRANSFORMER_BASED_WRAP")), default=True),
    of_setting("fsdp_transformer_layer_cls_to_wrap", "Which classes of layers, with commas between them?", answered("?fsdp_no_split", False), "BertLayer"),
    of_setting("fsdp_min_num_params", "From how many parameters is a module a unit?", answered(_WRAP, "SIZE_BASED_WRAP"), 100_000_000),
    of_setting("fsdp_backward_prefetch", None, _v1, "BACKWARD_PRE"),
    of_setting("fsdp_state_dict_type", "How are checkpoints to be written?", _v1, "FULL_STATE_DICT", numbered("FULL_STATE_DICT", "SHARDED_STATE_DICT")),
    of_setting("fsdp_state_dict_type", "How are checkpoints to be written?", _v2, "SHARDED_STATE_DICT", numbered("SHARDED_STATE_DICT", "FULL_STATE_DICT")),
    yes_no("fsdp_config.fsdp_forward_prefetch", "Fetch the next unit during the forward pass?", _v1),
    yes_no("fsdp_config.fsdp_use_orig_params", "Keep the original parameters visible?", _v1, default=True),
    yes_no(_LOADING, "Load pretrained weights on one process only?", _fsdp, default=True),
    yes_no("fsdp_config.fsdp_sync_module_states", "Send the parameters of rank 0 to all ranks at the start?", both(_v1, answered(_LOADING, False)), default=True),
    yes_no(_CHECKPOINTING, "Compute activations again in the backward pass instead of keeping them?", _fsdp),
    yes_no(f"{_CHECKPOINTING}_offload", "Keep the inputs of these layers on the CPU?", both(_v2, answered(_CHECKPOINTING))),
    # Megatron-LM
    yes_no("?megatron", "Train with Megatron-LM?", lambda answers: _gpu(answers) and not _deepspeed(answers) and not _fsdp(answers)),
    of_setting("megatron_lm_tp_degree", "How many processes share each layer (tensor parallel)?", _megatron),
    yes_no("megatron_lm_config.megatron_lm_sequence_parallelism", "Divide layer norms and dropouts along the sequence too?", both(_megatron, _more_than_one("megatron_lm_config.megatron_lm_tp_degree")), default=True),
    of_setting("megatron_lm_pp_degree", "How many stages (pipeline parallel)?", _megatron),
    of_setting("megatron_lm_num_micro_batches", "Into how many pieces is a batch cut for the stages?", both(_megatron, _more_than_one("megatron_lm_config.megatron_lm_pp_degree"))),
    yes_no("megatron_lm_config.megatron_lm_recompute_activations", "Compute chosen activations again in the backward pass?", _megatron, default=True),
    yes_no("megatron_lm_config.megatron_lm_use_distributed_optimizer", "Shard optimizer states over the data parallel ranks?", _megatron, default=True),
    of_setting("megatron_lm_gradient_clipping", "To which norm are gradients clipped (0 for none)?", _megatron),
    # Combined parallelism
    yes_no("?parallelism", "Combine several parallelisms (ParallelismConfig)?", lambda answers: _v2(answers) or _deepspeed(answers)),
    of_setting("parallelism_dp_replicate_size", "How many full copies of the model?", _combined),
    of_setting("parallelism_dp_shard_size", "How many shards of each copy?", _combined),
    of_setting("parallelism_tp_size", "How many processes share each layer (tensor parallel)?", _combined),
    of_setting("parallelism_pp_size", "Among how many processes are the blocks of the model divided (pipeline parallel)?", _combined),
    of_setting("parallelism_pp_schedule", "In which order do its stages compute?", both(_combined, _more_than_one(f"{_SIZES}pp_size"))),
    of_setting("parallelism_ep_size", "Over how many processes are the experts of a layer sharded (expert parallel)?", _combined),
    of_setting("parallelism_cp_size", "How many processes share each sequence (context parallel)?", _combined),
    of_setting("parallelism_cp_comm_strategy", "How do keys and values travel?", both(_combined, _more_than_one(f"{_SIZES}cp_size"))),
    of_setting("parallelism_sp_size", "How many processes share each sequence by attention heads (Ulysses)?", both(_combined, _deepspeed)),
    yes_no(f"{_SIZES}sp_seq_length_is_variable", "Does the length of the sequences differ from batch to batch?", _ulysses, default=True),
    of_setting("parallelism_sp_seq_length", "How long are the sequences?", answered(f"{_SIZES}sp_seq_length_is_variable", False), 1024),
    of_setting("parallelism_sp_attn_implementation", "Around which attention?", _ulysses),
    # TPUs
    of_setting("main_training_function", "Which function of the script trains?", _tpu),
    yes_no("tpu_use_cluster", "Run on a TPU pod?", _tpu),
    of_setting("tpu_name", "What is the TPU called?", _pod),
    of_setting("tpu_zone", "In which zone is it?", _pod),
    yes_no("tpu_use_sudo", "Run with sudo there?", _pod),
    yes_no("?tpu_vm", "Name the machines one by one (else the instance group is used)?", _pod),
    of_setting("tpu_vm", "Which machines, with commas between them?", answered("?tpu_vm")),
    of_setting("env", "Which variables, as NAME=VALUE with commas between them?", _pod),
    yes_no("?tpu_commands", "Run commands on the pod when it starts?", _pod),
    yes_no("?tpu_file", "Are they in a file?", answered("?tpu_commands")),
    Question("command_file", "Which file?", any_text, "", answered("?tpu_file")),
    Question("commands", "Which commands, with commas between them?", names, (), answered("?tpu_file", False)),
    # Processes and number formats
    of_setting("num_processes", "How many processes in all?", lambda answers: _multi(answers) or _tpu(answers), lambda answers: 8 if _tpu(answers) else answers.get("num_machines", 1)),
    Question("gpu_ids", "Which GPUs of this machine, such as 0,2?", any_text, "all", _gpu_ids),
    yes_no("enable_cpu_affinity", "Bind each process to the CPU cores near its GPU (NVIDIA)?", lambda answers: _gpu(answers) or (_plain(answers) and _gpu_ids(answers))),
    of_setting("mixed_precision", "Which mixed precision?"),
    yes_no("downcast_bf16", "Make doubles float32, and only floats bf16?", both(_tpu, answered("mixed_precision", "bf16"))),
    of_setting("fp8_backend", "Which library does the 8-bit arithmetic?", both(_here, answered("mixed_precision", "fp8")), "TE", choice("TE", "AO")),
    yes_no("fp8_config.use_autocast_during_eval", "Use 8 bits in evaluation too?", _te),
    *(of_setting(f"fp8_{name}", None, _te) for name in ("margin", "interval", "format", "amax_history_len", "amax_compute_algo")),
    yes_no("?override", "Do some products in higher precision?", _te),
    of_setting("fp8_override_linear_precision", "Forward, inputs' gradients, weights' gradients", answered("?override"), (False, False, False)),
    yes_no("fp8_config.enable_fsdp_float8_all_gather", "Gather sharded parameters in 8 bits?", _ao, default=True),
    yes_no("fp8_config.pad_inner_dim", "Pad matrices to the sizes 8-bit products need?", _ao, default=True),
)
# fmt: on


def fill_in(asker: Asker) -> dict[str, Any]:
    """Ask all questions whose condition holds and return the values by config key, flat (``section.key``)."""
    answers: dict[str, Any] = {}
    for question in QUESTIONS:
        if question.when(answers):
            answers[question.key] = question.ask(asker, answers)
    if _v1(answers) and answers.get(_LOADING):
        answers["fsdp_config.fsdp_sync_module_states"] = (
            True  # the other ranks get the weights of the one that loads
        )
    return values_of(answers)


def values_of(answers: Answers) -> dict[str, Any]:
    """Return what is written for ``answers``: the keys of the file, with what follows from the others."""
    values = {
        key: value for key, value in answers.items() if not key.startswith("?") and value not in ("", ())
    }
    engines = [kind for switch, kind in _ENGINES.items() if answers.get(switch)]
    kind = answers.get("?sagemaker_kind") or answers.get("?machine") or "NO"
    values["distributed_type"] = engines[0] if engines else str(kind)
    if _cpu(answers):
        values["use_cpu"] = True
    if answers.get("?launcher") in ("slurm", "ray", "kubernetes"):
        values["launcher"] = answers["?launcher"]
    return values
