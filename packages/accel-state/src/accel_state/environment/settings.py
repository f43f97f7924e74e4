"""All settings: one row each, in the order of the reference page, with the rules for the names of most of them.

Variable, flag, config key and reference page of a setting are derived from its row.
"""

# ruff: noqa: E501 -- a row is a line
from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from accel_state.enums import DynamoBackend
from accel_state.environment.parsers import (
    Parser,
    boolean,
    choice,
    count,
    digit,
    either,
    host,
    index,
    names,
    number,
    numbered,
    port,
    text,
    unless,
    word_or_installed,
)
from accel_state.errors import ConfigError, UnknownNameError, did_you_mean


class LaunchColumns(NamedTuple):
    """The use of a setting by ``accel launch``.

    Attributes:
        needs: Conditions without which a launch does not use it, by their names in the launcher.
        unset_values: Values of the config key that count as unset; the flag with one of them asks for nothing.
        default_text: The default in the help, if a launch decides it.
        separator: Joins the texts of a flag that may be given several times; None if it may not.
        is_secret: Whether its value must not be shown.
        is_common: Whether the shortest help lists it.
    """

    needs: tuple[str, ...] = ()
    unset_values: tuple[Any, ...] = ()
    default_text: str | None = None
    separator: str | None = None
    is_secret: bool = False
    is_common: bool = False


class Setting(NamedTuple):
    """A setting of an environment variable, a flag of ``accel launch`` or a key of the config file.

    Attributes:
        name: The name in the code.
        variable: Its environment variable; empty if only the launcher uses the setting.
        parse: Converts its text to a value.
        default: The value if it is unset or empty.
        help: Its effect, in a sentence.
        flag: Its option of ``accel launch``, None if it has none.
        config_key: Its key in the config file (``section.key`` inside a section), None if it has none.
        metavar: The placeholder of the value in the help; by default the parser's, or one made of the name.
        is_switch: Whether the flag takes no value.
        other_flags: Further spellings of the flag.
        launch: Its use by the launcher.
    """

    name: str
    variable: str
    parse: Parser
    default: Any
    help: str
    flag: str | None = None
    config_key: str | None = None
    metavar: str | None = None
    is_switch: bool = False
    other_flags: tuple[str, ...] = ()
    launch: LaunchColumns = LaunchColumns()

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The words that are accepted, None if the list is open."""
        return self.parse.choices

    def value_of(self, given: str | None, *, source: str | None = None) -> Any:
        """Return ``given`` parsed, or the default if it is None or blank.

        Args:
            given: The text as the user wrote it.
            source: The name of its place in messages; the variable if omitted.

        Raises:
            ConfigError: If the parser does not accept the text.
        """
        if given is None or not given.strip():
            return self.default
        try:
            return self.parse(given)
        except (ValueError, KeyError):
            hint = did_you_mean(given, self.choices or ())
            raise ConfigError(
                f"`{source or self.variable}` is `{given}`, but it must be {self.parse.accepts}.{hint}"
            ) from None

    def text_of(self, value: Any) -> str:
        """Return ``value`` as the text of a variable; the inverse of `value_of`."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (list, tuple)):
            return (self.launch.separator or ",").join(str(part) for part in value)
        return str(value)


def rule(
    name: str, variable: str, flag: str | None = None, config_key: str | None = None, **shared: Any
) -> Callable[..., Setting]:
    """Return a function that makes settings named alike: ``{}`` in each pattern is the short name.

    In a variable it is in upper case. A pattern of None omits that column. ``shared`` are columns of all of
    them; the columns of a setting override these.
    """

    def make(short: str, parse: Parser, default: Any, description: str, **columns: Any) -> Setting:
        names: dict[str, Any] = {
            "variable": variable.format(short.upper()),
            "flag": flag and flag.format(short),
            "config_key": config_key and config_key.format(short),
        }
        given = {**names, **shared, **columns}
        launch = {key: given.pop(key) for key in LaunchColumns._fields if key in given}
        made = Setting(name.format(short), "", parse, default, description, launch=LaunchColumns(**launch))
        return made._replace(**given)

    return make


run = rule("{}", "ACCELERATE_{}", "--{}", "{}")
only_variable = rule("{}", "ACCELERATE_{}")
process = rule("{}", "{}", "--{}", "{}")
fsdp = rule("fsdp_{}", "FSDP_{}", "--fsdp_{}", "fsdp_config.fsdp_{}", needs=("fsdp",))
deepspeed = rule(
    "deepspeed_{}", "ACCELERATE_DEEPSPEED_{}", "--{}", "deepspeed_config.{}", needs=("deepspeed",)
)
parallelism = rule("parallelism_{}", "PARALLELISM_CONFIG_{}", "--parallelism_config_{}", "parallelism_config.parallelism_config_{}", needs=("parallelism_config",))  # fmt: skip
dynamo = rule(
    "dynamo_{}", "ACCELERATE_DYNAMO_{}", "--dynamo_{}", "dynamo_config.dynamo_{}", needs=("dynamo_backend",)
)
fp8 = rule("fp8_{}", "ACCELERATE_FP8_{}", "--fp8_{}", "fp8_config.{}", needs=("fp8",))
transformer_engine = rule("fp8_{}", "FP8_{}")
megatron = rule(
    "megatron_lm_{}",
    "MEGATRON_LM_{}",
    "--megatron_lm_{}",
    "megatron_lm_config.megatron_lm_{}",
    needs=("megatron_lm",),
)

_STRATEGIES = numbered("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_WRAP_POLICIES = numbered("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_PREFETCHES = numbered("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
_STATE_DICTS = numbered("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
_DEVICES = choice("none", "cpu", "nvme")
_PRECISIONS = word_or_installed("accel.precisions", "no", "fp16", "bf16", "fp8")
# Conditions of the settings of one FP8 library.
_TE, _AO = (("fp8", library) for library in ("te", "ao"))
_LEVELS = choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

IN_PLACE_OF_IPEX = "what Intel's extension did is part of torch, processes on CPUs communicate over `gloo`, and those on Intel's GPUs over `xccl`"
"""The replacement of Intel's extension (IPEX) and oneCCL, for messages."""

# Parser, default, effect; then the columns that differ from the rule.
# fmt: off
_ROWS: dict[str, tuple[Setting, ...]] = {
    "The run": (
        run("mixed_precision", _PRECISIONS, "no", "Precision of the forward pass.", is_common=True),
        run("use_cpu", boolean, False, "Run on the CPU even if there is an accelerator.", flag="--cpu", is_switch=True, is_common=True),
        only_variable("torch_device", text, None, "Device to use instead of the default, such as `cuda:1`."),
        run("num_processes", count, None, "Total number of processes.", default_text="one for each GPU, or 1", unset_values=(-1,), is_common=True),
        # `auto` in a DeepSpeed run leaves the number to the script, as an unset variable does.
        run("gradient_accumulation_steps", unless("auto", count, None), None, "Number of batches whose gradients are accumulated before an optimizer step.", config_key="deepspeed_config.gradient_accumulation_steps"),
        run("cpu_affinity", boolean, False, "Bind each process to the CPU cores near its GPU (NVIDIA only).", flag="--enable_cpu_affinity", config_key="enable_cpu_affinity", is_switch=True, needs=("gpu",)),
        run("share_gpus", boolean, False, "Run more processes than there are GPUs, several on each, which is slow and for tests (NVIDIA and AMD only).", variable="ACCEL_SHARE_GPUS", is_switch=True, needs=("gpu",)),
        run("debug_mode", boolean, False, "Check before each collective that all ranks call it with tensors of the same shape.", flag="--debug", config_key="debug", is_switch=True),
        only_variable("use_ipex", boolean, False, f"Has no effect any more: {IN_PLACE_OF_IPEX}."),
        only_variable("fp16_on_cpu", boolean, False, "Allow `mixed_precision=fp16` on the CPU, where it is slower than fp32, to try a script out.", variable="ACCEL_FP16_ON_CPU"),
        only_variable("debug_rdv_file", text, None, "Rendezvous file of the processes of `debug_launcher`."),
        only_variable("log_level", _LEVELS, None, "Level of the loggers from `get_logger`."),
        only_variable("enable_rich", boolean, False, "Print tracebacks with the package `rich`."),
        only_variable("init_include_buffers", boolean, False, "Put buffers as well as parameters on the meta device in `init_empty_weights`."),
        only_variable("bypass_device_map", boolean, False, "Allow a model loaded with a device map to be prepared for a distributed run."),
        only_variable("use_sagemaker", boolean, False, "The run is a SageMaker job; set by the launcher."),
        only_variable("sagemaker_distributed_type", choice("NO", "DATA_PARALLEL", "MODEL_PARALLEL"), "NO", "How the SageMaker job is distributed; set by the launcher."),
        only_variable("use_torch_xla", boolean, True, "Use the devices of `torch_xla` if it is installed.", variable="USE_TORCH_XLA"),
        only_variable("hf_home", text, None, "Parent folder of the default config file.", variable="HF_HOME"),
    ),
    # Ranks and sizes are read together, as one topology: see `accel_state.launched_by`.
    "Processes": (
        process("master_addr", host, None, "Host of rank 0, the rendezvous of the ranks.", flag="--main_process_ip", other_flags=("--master_addr",), config_key="main_process_ip", metavar="ADDRESS", needs=("machines",)),
        process("master_port", port, None, "Port on that host.", flag="--main_process_port", other_flags=("--master_port",), config_key="main_process_port", default_text="a free one"),
        Setting("ompi_rank", "OMPI_COMM_WORLD_RANK", index, None, "Rank of this process (Open MPI)."),
        Setting("ompi_world_size", "OMPI_COMM_WORLD_SIZE", count, None, "Number of processes (Open MPI)."),
        Setting("ompi_local_rank", "OMPI_COMM_WORLD_LOCAL_RANK", index, None, "Rank on this machine (Open MPI)."),
        Setting("ompi_local_world_size", "OMPI_COMM_WORLD_LOCAL_SIZE", count, None, "Number of processes on this machine (Open MPI)."),
        Setting("mv2_rank", "MV2_COMM_WORLD_RANK", index, None, "Rank of this process (MVAPICH)."),
        Setting("mv2_world_size", "MV2_COMM_WORLD_SIZE", count, None, "Number of processes (MVAPICH)."),
        Setting("mv2_local_rank", "MV2_COMM_WORLD_LOCAL_RANK", index, None, "Rank on this machine (MVAPICH)."),
        Setting("mv2_local_world_size", "MV2_COMM_WORLD_LOCAL_SIZE", count, None, "Number of processes on this machine (MVAPICH)."),
        Setting("pmi_rank", "PMI_RANK", index, None, "Rank of this process (Intel MPI, MPICH)."),
        Setting("pmi_world_size", "PMI_SIZE", count, None, "Number of processes (Intel MPI, MPICH)."),
        Setting("pmi_local_rank", "MPI_LOCALRANKID", index, None, "Rank on this machine (Intel MPI, MPICH)."),
        Setting("pmi_local_world_size", "MPI_LOCALNRANKS", count, None, "Number of processes on this machine (Intel MPI, MPICH)."),
        process("num_cpu_threads_per_process", count, None, "Number of CPU threads of each process.", variable="OMP_NUM_THREADS", config_key=None, default_text="1 with a GPU, else the cores, divided among the processes"),
        process("tpu_name", text, None, "Name of the TPU."),
        process("downcast_bf16", boolean, False, "On TPUs in bf16, store floats as bf16 and doubles as float32; by default weights keep their dtype and operations are cast.", variable="ACCELERATE_DOWNCAST_BF16", is_switch=True, needs=("tpu", "bf16")),
        Setting("xla_use_bf16", "XLA_USE_BF16", boolean, False, "XLA casts floats and doubles to bf16."),
        Setting("xla_downcast_bf16", "XLA_DOWNCAST_BF16", boolean, False, "XLA casts floats to bf16, doubles to float."),
    ),
    "FSDP": (
        Setting("use_fsdp", "ACCELERATE_USE_FSDP", boolean, False, "Train with fully sharded data parallelism.", "--use_fsdp", is_switch=True, launch=LaunchColumns(is_common=True)),
        fsdp("version", digit(1, 2), 1, "Version of FSDP."),
        fsdp("sharding_strategy", _STRATEGIES, "FULL_SHARD", "Sharding strategy (version 1)."),
        # With version 1 this is the newer name of the sharding strategy.
        fsdp("reshard_after_forward", either(_STRATEGIES, boolean), None, "Reshard parameters after the forward pass (version 2).", metavar="{true,false}"),
        fsdp("offload_params", boolean, False, "Keep parameters and gradients in CPU memory."),
        fsdp("auto_wrap_policy", _WRAP_POLICIES, None, "How the model is split into FSDP units; by default by the model's `_no_split_modules` (version 2)."),
        fsdp("transformer_layer_cls_to_wrap", names, None, "Classes of layers that become FSDP units, such as `BertLayer` (`TRANSFORMER_BASED_WRAP`).", variable="FSDP_TRANSFORMER_CLS_TO_WRAP"),
        fsdp("min_num_params", index, None, "Minimum number of parameters of an FSDP unit (`SIZE_BASED_WRAP`).", needs=("fsdp", "size_based_wrap")),
        fsdp("backward_prefetch", _PREFETCHES, "NO_PREFETCH", "When the backward pass prefetches the next unit (version 1): BACKWARD_PRE, which always happens.", flag="--fsdp_backward_prefetch_policy", config_key="fsdp_config.fsdp_backward_prefetch_policy", other_flags=("--fsdp_backward_prefetch",)),
        fsdp("forward_prefetch", boolean, False, "Prefetch the next unit during the forward pass (version 1)."),
        fsdp("state_dict_type", _STATE_DICTS, None, "How checkpoints are written: full (default of version 1) or sharded (default of version 2)."),
        fsdp("use_orig_params", boolean, False, "Keep the original parameters (version 1); always so."),
        fsdp("cpu_ram_efficient_loading", boolean, False, "Load pretrained weights on one process only and broadcast them."),
        fsdp("sync_module_states", boolean, False, "Broadcast the parameters of rank 0 at the start (version 1); always so."),
        fsdp("activation_checkpointing", boolean, False, "Recompute activations in the backward pass instead of storing them."),
        fsdp("activation_checkpointing_offload", boolean, False, "Keep the inputs of checkpointed layers in CPU memory."),
        fsdp("ignored_modules", text, None, "Regular expression that matches the full names of modules to leave unsharded.", flag=None),
    ),
    "DeepSpeed": (
        Setting("use_deepspeed", "ACCELERATE_USE_DEEPSPEED", boolean, False, "Train with DeepSpeed.", "--use_deepspeed", is_switch=True, launch=LaunchColumns(is_common=True)),
        deepspeed("config_file", unless("none", text, None), None, "DeepSpeed's own JSON config, used unchanged.", flag="--deepspeed_config_file", config_key="deepspeed_config.deepspeed_config_file"),
        deepspeed("zero_stage", digit(0, 1, 2, 3), 2, "What ZeRO shards: nothing (0), the optimizer state (1), also gradients (2), also parameters (3)."),
        Setting("gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", unless("none", unless("auto", number, None), None), None, "Maximum gradient norm, clipped by the engine; 0 is off.", "--gradient_clipping", "deepspeed_config.gradient_clipping", metavar="NORM", launch=LaunchColumns(needs=("deepspeed",))),
        deepspeed("offload_optimizer_device", _DEVICES, "none", "Device of the optimizer state (ZeRO 2 and 3)."),
        deepspeed("offload_optimizer_nvme_path", unless("none", text, None), None, "Folder for the optimizer state on NVMe."),
        deepspeed("offload_param_device", _DEVICES, "none", "Device of the parameters (ZeRO 3)."),
        deepspeed("offload_param_nvme_path", unless("none", text, None), None, "Folder for parameters on NVMe."),
        deepspeed("zero3_init", boolean, None, "Build models sharded from the start with `deepspeed.zero.Init` (ZeRO 3).", flag="--zero3_init_flag", config_key="deepspeed_config.zero3_init_flag"),
        deepspeed("zero3_save_16bit_model", boolean, False, "Gather the 16-bit weights when the model is saved (ZeRO 3)."),
        deepspeed("moe_layer_cls_names", names, None, "Classes of mixture-of-experts layers, such as `MixtralSparseMoeBlock`, that ZeRO 3 gathers as one.", flag="--deepspeed_moe_layer_cls_names", config_key="deepspeed_config.deepspeed_moe_layer_cls_names"),
        Setting("config_ds_fields", "ACCELERATE_CONFIG_DS_FIELDS", names, (), "Keys of the config file that a DeepSpeed config must not set again; set by the launcher."),
    ),
    "Combined parallelism": (
        Setting("use_parallelism_config", "ACCELERATE_USE_PARALLELISM_CONFIG", boolean, False, "Build the `ParallelismConfig` from the variables below.", "--use_parallelism_config", is_switch=True),
        parallelism("dp_replicate_size", count, 1, "Number of replicas of the model."),
        parallelism("dp_shard_size", count, 1, "Number of shards of each replica."),
        parallelism("tp_size", count, 1, "Number of tensor parallel processes, which shard each layer."),
        parallelism("pp_size", count, 1, "Number of pipeline parallel processes, among which the blocks of the model are divided."),
        parallelism("pp_schedule", choice("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"), "1f1b", "Schedule of the pipeline stages."),
        parallelism("pp_num_micro_batches", count, None, "Number of micro-batches of a batch; two per stage if omitted."),
        parallelism("pp_stages_per_rank", count, None, "Pipeline stages per process; two with `interleaved_1f1b`, else one, if omitted."),
        parallelism("ep_size", count, 1, "Number of expert parallel processes, over which the experts of a layer are sharded."),
        parallelism("cp_size", count, 1, "Number of context parallel processes, which shard each sequence."),
        parallelism("cp_backend", choice("torch"), "torch", "Library for context parallelism."),
        parallelism("cp_comm_strategy", choice("allgather", "alltoall"), "allgather", "How keys and values are exchanged in context parallelism."),
        parallelism("sp_size", count, 1, "Number of sequence parallel processes, which shard each sequence by attention heads (Ulysses)."),
        parallelism("sp_backend", choice("deepspeed", "torch"), "deepspeed", "Library for sequence parallelism."),
        parallelism("sp_seq_length", count, None, "Length of the sequences, if it is constant."),
        parallelism("sp_seq_length_is_variable", boolean, True, "Whether the length differs from batch to batch."),
        parallelism("sp_attn_implementation", text, "sdpa", "Attention implementation under sequence parallelism."),
        Setting("allow_cp_standalone", "ACCELERATE_ALLOW_CP_STANDALONE", boolean, False, "Allow context parallelism without a sharded model."),
    ),
    "Compilation": (
        dynamo("backend", choice(*DynamoBackend.list()), "NO", "Backend of `torch.compile`.", needs=()),
        dynamo("mode", choice("default", "reduce-overhead", "max-autotune"), "default", "Mode of `torch.compile`."),
        dynamo("use_fullgraph", boolean, False, "Fail if the model cannot be captured as one graph.", is_switch=True),
        dynamo("use_dynamic", boolean, False, "Compile for dynamic shapes.", is_switch=True),
        dynamo("use_regional_compilation", boolean, False, "Compile the repeated blocks of the model one by one, which is faster to compile.", is_switch=True),
    ),
    "FP8": (
        fp8("backend", choice("NO", "TE", "MSAMP", "AO"), "NO", "Library for FP8: Transformer Engine or torchao; MS-AMP is not supported."),
        fp8("use_autocast_during_eval", boolean, False, "Use FP8 in evaluation as well (Transformer Engine).", is_switch=True, needs=_TE),
        fp8("margin", index, 0, "Margin of the gradient scaling, in powers of two (Transformer Engine).", needs=_TE),
        fp8("interval", index, 1, "Number of steps between two computations of the scaling factor (Transformer Engine).", needs=_TE),
        fp8("format", choice("HYBRID", "E4M3", "E5M2"), "HYBRID", "FP8 format of the recipe (Transformer Engine).", config_key="fp8_config.fp8_format", needs=_TE),
        fp8("amax_history_len", index, 1024, "Number of steps in the history of maxima (Transformer Engine).", config_key="fp8_config.amax_history_length", needs=_TE),
        fp8("amax_compute_algo", choice("most_recent", "max"), "most_recent", "How the scaling factor follows from the history of maxima (Transformer Engine).", config_key="fp8_config.amax_compute_algorithm", needs=_TE),
        fp8("use_mxfp8_block_scaling", boolean, False, "Scale blocks of 32 values instead of tensors (Transformer Engine on Blackwell).", needs=_TE),
        fp8("opt_level", choice("O1", "O2"), "O2", "Not used: the level of MS-AMP.", needs=("msamp",)),
        fp8("enable_fsdp_float8_all_gather", boolean, None, "All-gather sharded parameters in FP8 (torchao with FSDP 2).", needs=_AO),
        fp8("pad_inner_dim", boolean, None, "Pad matrices to the sizes that FP8 matrix multiplication needs (torchao).", needs=_AO),
        transformer_engine("override_fprop", boolean, False, "Compute the forward matrix products in higher precision (Transformer Engine)."),
        transformer_engine("override_dgrad", boolean, False, "Compute the gradients of inputs in higher precision (Transformer Engine)."),
        transformer_engine("override_wgrad", boolean, False, "Compute the gradients of weights in higher precision (Transformer Engine)."),
    ),
    "Megatron-LM": (
        Setting("use_megatron_lm", "ACCELERATE_USE_MEGATRON_LM", boolean, False, "Train with Megatron-LM.", "--use_megatron_lm", is_switch=True),
        megatron("tp_degree", count, 1, "Number of tensor parallel processes, which shard each layer."),
        megatron("pp_degree", count, 1, "Number of pipeline parallel processes, among which the layers are divided."),
        megatron("num_micro_batches", count, 1, "Number of micro-batches of a batch."),
        megatron("sequence_parallelism", boolean, None, "Shard layer norms and dropouts along the sequence, if the tensor parallel degree exceeds 1."),
        megatron("recompute_activations", boolean, None, "Recompute selected activations in the backward pass."),
        megatron("use_distributed_optimizer", boolean, None, "Shard the optimizer state over the data parallel ranks."),
        megatron("gradient_clipping", number, 1.0, "Maximum gradient norm; 0 is off."),
        megatron("use_custom_fsdp", boolean, None, "Shard with Megatron's own FSDP."),
        megatron("no_load_optim", boolean, None, "Load checkpoints without the optimizer state."),
        megatron("eod_mask_loss", boolean, None, "Exclude end-of-document tokens from the loss."),
        megatron("overlap_cpu_optimizer_d2h_h2d", boolean, None, "Overlap the optimizer step on the CPU with the copies of gradients and parameters."),
        megatron("no_save_optim", boolean, None, "Save checkpoints without the optimizer state."),
        megatron("optimizer_cpu_offload", boolean, None, "Keep the optimizer state in CPU memory."),
        megatron("use_precision_aware_optimizer", boolean, None, "Allow the optimizer state in precisions other than float32."),
        megatron("decoder_last_pipeline_num_layers", count, None, "Number of layers of the last stage, if the stages differ."),
        megatron("recompute_granularity", choice("full", "selective"), None, "Whether full layers or selected activations are recomputed."),
        megatron("recompute_method", choice("uniform", "block"), None, "Which layers are recomputed."),
        megatron("recompute_num_layers", count, None, "Number of layers that are recomputed together."),
        megatron("attention_backend", boolean, None, "Use the attention kernel that Megatron chooses."),
        megatron("expert_model_parallel_size", count, None, "Number of expert parallel processes, over which the experts of a layer are sharded."),
        megatron("context_parallel_size", count, None, "Number of context parallel processes, which shard each sequence."),
        megatron("attention_dropout", number, None, "Dropout rate of the attention."),
        megatron("hidden_dropout", number, None, "Dropout rate of the hidden states."),
        megatron("attention_softmax_in_fp32", boolean, None, "Compute the softmax of the attention in float32."),
        megatron("expert_tensor_parallel_size", count, None, "Number of tensor parallel processes of each expert."),
        megatron("calculate_per_token_loss", boolean, None, "Weight the loss by tokens instead of samples."),
        megatron("use_rotary_position_embeddings", boolean, None, "Use rotary position embeddings."),
    ),
}
# fmt: on

SECTIONS: Mapping[str, tuple[Setting, ...]] = MappingProxyType(_ROWS)
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {setting.name: setting for section in SECTIONS.values() for setting in section}
)


def find_setting(name: str) -> Setting:
    """Return the setting called ``name``.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in SETTINGS:
        raise UnknownNameError.of("setting", name, SETTINGS)
    return SETTINGS[name]
