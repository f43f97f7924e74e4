"""How a model is trained by Megatron-LM: how ranks share it, its micro-batches, its optimizer and its schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from accel_state.enums import DistributedType
from accel_state.environment import environ, find_setting
from accel_state.environment.settings import SETTINGS
from accel_state.errors import ConfigError, UnknownNameError
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology

_PREFIX = "megatron_lm_"
_WITH_VARIABLE = frozenset(name.removeprefix(_PREFIX) for name in SETTINGS if name.startswith(_PREFIX))
_AXES = {"tp_degree": "tp", "pp_degree": "pp", "context_parallel_size": "cp"}
"""Fields that say how ranks are arranged, and their axes."""
_COUNTS = (
    "num_layers_per_virtual_pipeline_stage",
    "train_iters",
    "train_samples",
    "seq_length",
    "eval_iters",
)
_PAIRS = (
    ("train_iters", "train_samples"),
    ("lr_decay_iters", "lr_decay_samples"),
    ("lr_warmup_iters", "lr_warmup_samples"),
    ("lr_warmup_iters", "lr_warmup_fraction"),
    ("lr_warmup_samples", "lr_warmup_fraction"),
)
"""Fields of which one says what the other says, in another unit."""
_GONE = {
    "use_custom_fsdp": "shards by Megatron's own FSDP. Leave it out, or train with `FullyShardedDataParallelPlugin`",
    "pipeline_model_parallel_split_rank": (
        "put encoder and decoder on stages of their own, which megatron-core 0.16 has no more. Leave it out"
    ),
    "tensorboard_dir": (
        "belonged to the training script of Megatron-LM. Pass `log_with='tensorboard'` to the `Accelerator`"
    ),
    "set_all_logging_options": (
        "belonged to the training script of Megatron-LM. Log with `accelerator.log`, and leave it out"
    ),
}
"""Fields that nothing serves, and why."""


@dataclass
class MegatronLMPlugin:
    """Settings of training by Megatron-LM. What is None is read from its variable ``MEGATRON_LM_*`` at construction.

    Args:
        tp_degree: Processes that share each layer.
        pp_degree: Stages that the layers are divided into.
        use_custom_fsdp: Not offered: Megatron's own FSDP.
        overlap_cpu_optimizer_d2h_h2d: Overlap the optimizer's step on the CPU with its copies.
        no_load_optim: Leave the optimizer's state out when a checkpoint is loaded.
        eod_mask_loss: Leave end-of-document tokens out of the loss, with Megatron's data sets.
        no_save_optim: Leave the optimizer's state out of checkpoints.
        optimizer_cpu_offload: Keep the optimizer's state in the memory of the CPU.
        use_precision_aware_optimizer: Let the optimizer keep its state in other precisions than float32.
        decoder_last_pipeline_num_layers: Layers of the last stage, where it has another number than the others.
        recompute_granularity: What the backward pass computes again: ``full`` layers or ``selective`` activations.
        recompute_method: Which layers, where they are full: ``uniform`` or ``block``.
        recompute_num_layers: How many layers are computed again together.
        attention_backend: Whether Megatron chooses the kernel of the attention; False: none that is fused.
        expert_model_parallel_size: Processes that share the experts of a layer.
        context_parallel_size: Processes that share each sequence; needs Transformer Engine.
        attention_dropout: Dropout of the attention; that of the model's config where None.
        hidden_dropout: Dropout of hidden states; that of the model's config where None.
        attention_softmax_in_fp32: Compute the attention's softmax in float32.
        expert_tensor_parallel_size: Processes that share each expert.
        calculate_per_token_loss: Average losses over tokens, not first over each micro-batch.
        use_rotary_position_embeddings: Use rotary position embeddings.
        num_micro_batches: Micro-batches of each batch: the accumulation of gradients.
        gradient_clipping: Norm that gradients are clipped to; 0 is off.
        sequence_parallelism: Divide norms and dropouts along the sequence too, where ``tp_degree`` exceeds 1.
        recompute_activations: Compute chosen activations again in the backward pass.
        use_distributed_optimizer: Shard the optimizer's state over the data ranks.
        pipeline_model_parallel_split_rank: Not offered.
        num_layers_per_virtual_pipeline_stage: Layers of each part, where a rank has several parts of a pipeline.
        is_train_batch_min: Whether the smallest batch size of the loaders that are prepared counts, not the largest.
        train_iters: Length of the run in steps, where Megatron's data sets or schedule need it.
        train_samples: The same in samples.
        weight_decay_incr_style: How the weight decay grows: ``constant``, ``linear`` or ``cosine``.
        start_weight_decay: The weight decay at the start; the optimizer's where None.
        end_weight_decay: The weight decay at the end; the optimizer's where None.
        lr_decay_style: ``constant``, ``linear``, ``cosine``, ``inverse-square-root`` or ``WSD``.
        lr_decay_iters: Steps over which the learning rate decays.
        lr_decay_samples: The same in samples.
        lr_warmup_iters: Steps over which the learning rate grows.
        lr_warmup_samples: The same in samples.
        lr_warmup_fraction: The same as a part of the decay.
        min_lr: The lowest learning rate.
        consumed_samples: Samples of the train, validation and test sets that a run before has read.
        no_wd_decay_cond: Tells by name and parameter whether it has no weight decay.
        scale_lr_cond: Tells by name and parameter whether its learning rate is multiplied by ``lr_mult``.
        lr_mult: By how much.
        megatron_dataset_flag: Whether batches come from Megatron's data sets (`MegatronLMDummyDataLoader`).
        seq_length: Longest sequence; that of the model's config where None.
        encoder_seq_length: Longest sequence of the encoder (T5).
        decoder_seq_length: Longest sequence of the decoder (T5).
        tensorboard_dir: Not offered.
        set_all_logging_options: Not offered.
        eval_iters: Batches of an evaluation, with Megatron's data sets.
        eval_interval: Steps between two evaluations, with Megatron's data sets.
        return_logits: Return logits too, on the ranks of the last stage (GPT).
        custom_train_step_class: A subclass of `AbstractTrainStep` in place of the model's own.
        custom_train_step_kwargs: Further arguments of it.
        custom_model_provider_function: Called as ``(pre_process, post_process)``; returns a part of the model.
        custom_prepare_model_function: Called with the parts of the model; returns them, wrapped.
        custom_megatron_datasets_provider_function: Called with the numbers of samples; returns three data sets.
        custom_get_batch_function: Called with an iterator over micro-batches; returns what the train step needs.
        custom_loss_function: Called in place of the train step's loss function.
        other_megatron_args: Further arguments of megatron-core, by their names in its configs.

    Attributes:
        megatron_lm_default_args: What is known of the model, by the names of Megatron-LM's arguments: a parser of
            `MODEL_CONFIGS_TO_MEGATRON_PARSERS` fills it when a model is prepared. The methods ``set_*`` fill it before.
        micro_batch_size: Rows of a micro-batch, known when loaders are prepared.
        global_batch_size: Rows of a step on all ranks, known likewise.

    Raises:
        ConfigError: If a value is not possible, or contradicts another.
    """

    distributed_type: ClassVar[DistributedType] = DistributedType.MEGATRON_LM
    strategy: ClassVar[str] = "megatron"

    tp_degree: int = None  # type: ignore[assignment]
    pp_degree: int = None  # type: ignore[assignment]
    use_custom_fsdp: bool | None = None
    overlap_cpu_optimizer_d2h_h2d: bool | None = None
    no_load_optim: bool | None = None
    eod_mask_loss: bool | None = None
    no_save_optim: bool | None = None
    optimizer_cpu_offload: bool | None = None
    use_precision_aware_optimizer: bool | None = None
    decoder_last_pipeline_num_layers: int | None = None
    recompute_granularity: Literal["full", "selective"] | None = None
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = None
    attention_backend: bool | None = None
    expert_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    attention_dropout: float | None = None
    hidden_dropout: float | None = None
    attention_softmax_in_fp32: bool | None = None
    expert_tensor_parallel_size: int | None = None
    calculate_per_token_loss: bool | None = None
    use_rotary_position_embeddings: bool | None = None
    num_micro_batches: int = None  # type: ignore[assignment]
    gradient_clipping: float = None  # type: ignore[assignment]
    sequence_parallelism: bool | None = None
    recompute_activations: bool | None = None
    use_distributed_optimizer: bool | None = None
    pipeline_model_parallel_split_rank: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    is_train_batch_min: bool = True
    train_iters: int | None = None
    train_samples: int | None = None
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "linear"
    lr_decay_iters: int | None = None
    lr_decay_samples: int | None = None
    lr_warmup_iters: int | None = None
    lr_warmup_samples: int | None = None
    lr_warmup_fraction: float | None = None
    min_lr: float = 0
    consumed_samples: list[int] | None = None
    no_wd_decay_cond: Callable[..., bool] | None = None
    scale_lr_cond: Callable[..., bool] | None = None
    lr_mult: float = 1.0
    megatron_dataset_flag: bool = False
    seq_length: int | None = None
    encoder_seq_length: int | None = None
    decoder_seq_length: int | None = None
    tensorboard_dir: str | None = None
    set_all_logging_options: bool = False
    eval_iters: int = 100
    eval_interval: int = 1000
    return_logits: bool = False
    custom_train_step_class: Any | None = None
    custom_train_step_kwargs: dict[str, Any] | None = None
    custom_model_provider_function: Callable[..., Any] | None = None
    custom_prepare_model_function: Callable[..., Any] | None = None
    custom_megatron_datasets_provider_function: Callable[..., Any] | None = None
    custom_get_batch_function: Callable[..., Any] | None = None
    custom_loss_function: Callable[..., Any] | None = None
    other_megatron_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._given_axes = {
            name: getattr(self, name) is not None or environ.is_set(f"{_PREFIX}{name}") for name in _AXES
        }
        for field in fields(self):
            if field.name in _WITH_VARIABLE:
                setattr(self, field.name, _value_of(field.name, getattr(self, field.name)))
        self._check()
        self.megatron_lm_default_args: dict[str, Any] = {}
        self.custom_train_step_kwargs = dict(self.custom_train_step_kwargs or {})
        self.other_megatron_args = dict(self.other_megatron_args or {})
        self.consumed_samples = list(self.consumed_samples or (0, 0, 0))
        self.micro_batch_size: int | None = None
        self.num_data_ranks: int | None = None

    @property
    def global_batch_size(self) -> int | None:
        """Rows of a step on all ranks, None before a loader is prepared."""
        if self.micro_batch_size is None or self.num_data_ranks is None:
            return None
        return self.micro_batch_size * self.num_micro_batches * self.num_data_ranks

    def set_network_size_args(self, model: nn.Module, batch_data: Any = None) -> None:
        """Fill `megatron_lm_default_args` from the config of a model, with the parser of its type.

        Raises:
            UnknownNameError: If there is none for its type.
            ConfigError: If the model has no config.
        """
        from accel_backends.plugins.megatron_parsers import MODEL_CONFIGS_TO_MEGATRON_PARSERS as PARSERS

        model_type = getattr(getattr(model, "config", None), "model_type", None)
        if model_type is None:
            raise ConfigError(
                f"The {type(model).__name__} has no `config.model_type`, from which Megatron-LM makes a model of its "
                "own. Prepare a model of transformers, or set `custom_model_provider_function` of the "
                "MegatronLMPlugin and give the model a config."
            )
        if model_type not in PARSERS:
            raise UnknownNameError.of("model type for Megatron-LM", model_type, PARSERS)
        PARSERS[model_type](self, model, batch_data)

    def set_optimizer_type(self, optimizer: torch.optim.Optimizer) -> None:
        """Fill `megatron_lm_default_args` from an optimizer.

        Raises:
            ConfigError: If Megatron-LM has none like it.
        """
        from accel_backends.plugins.megatron_parsers import optimizer_settings

        self.megatron_lm_default_args.update(optimizer_settings(optimizer))

    def set_training_args(self, micro_batch_size: int, dp_degree: int) -> None:
        """Set the sizes of batches, and fill `megatron_lm_default_args` with them."""
        self.micro_batch_size, self.num_data_ranks = micro_batch_size, dp_degree
        self.megatron_lm_default_args.update(
            data_parallel_size=dp_degree,
            micro_batch_size=micro_batch_size,
            global_batch_size=self.global_batch_size,
        )

    def set_mixed_precision(self, mixed_precision: str) -> None:
        """Fill `megatron_lm_default_args` with a precision of 16 bits; training has that of the Accelerator."""
        if mixed_precision in ("fp16", "bf16"):
            self.megatron_lm_default_args[mixed_precision] = True

    def default_layout(self, topology: Topology) -> MeshLayout:
        """Return how the ranks are arranged where no `ParallelismConfig` says it.

        Raises:
            ConfigError: If the degrees do not divide the number of processes.
        """
        sizes = {axis: getattr(self, name) or 1 for name, axis in _AXES.items()}
        shared = sizes["tp"] * sizes["pp"] * sizes["cp"]
        if topology.world_size % shared:
            raise ConfigError(
                f"`tp_degree` {sizes['tp']} · `pp_degree` {sizes['pp']} · `context_parallel_size` {sizes['cp']} is "
                f"{shared}, which does not divide the {topology.world_size} processes. Start a multiple of {shared}, "
                "or lower one of them."
            )
        if shared == 1:
            return MeshLayout.of_replicas(topology.world_size)
        return MeshLayout(dp_shard=topology.world_size // shared, **sizes)

    def settle_layout(self, layout: MeshLayout) -> None:
        """Take over how the ranks are arranged.

        Raises:
            ConfigError: If the plugin was given other degrees.
        """
        for name, axis in _AXES.items():
            own, size = getattr(self, name) or 1, getattr(layout, axis)
            if self._given_axes[name] and own != size:
                raise ConfigError(
                    f"`{name}` of the MegatronLMPlugin is {own}, but `{axis}_size` of the `ParallelismConfig` is "
                    f"{size}. Say it in one place."
                )
            setattr(self, name, size)
        self.num_data_ranks = layout.num_data_ranks
        experts = self.expert_model_parallel_size or 1
        if experts == 1:
            return
        tensor = self.expert_tensor_parallel_size or layout.tp
        if layout.world_size // layout.pp % (experts * tensor):
            raise ConfigError(
                f"`expert_model_parallel_size` {experts} · `expert_tensor_parallel_size` {tensor} does not divide the "
                f"{layout.world_size // layout.pp} ranks of a stage. Choose sizes that do."
            )

    def _check(self) -> None:
        for name, reason in _GONE.items():
            if getattr(self, name):
                raise ConfigError(
                    f"`{name}` of the MegatronLMPlugin is not offered: it {reason}. Leave it out."
                )
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"`{name}` must be a whole number of at least 1, got {value!r}.")
        if self.gradient_clipping < 0:
            raise ConfigError(f"`gradient_clipping` must be 0 (off) or more, got {self.gradient_clipping}.")
        for first, second in _PAIRS:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ConfigError(f"`{first}` and `{second}` say the same thing. Pass one of them.")
        if self.recompute_activations and self.recompute_granularity == "full":
            raise ConfigError(
                "`recompute_activations` computes chosen activations again, `recompute_granularity` is `full`. Leave "
                "the first out."
            )
        if self.recompute_method is not None and self.recompute_granularity != "full":
            raise ConfigError(
                f"`recompute_method` is `{self.recompute_method}`, which says how full layers are computed again, but "
                f"`recompute_granularity` is {self.recompute_granularity!r}. Set that to `full`, or leave it out."
            )
        if self.use_precision_aware_optimizer and not self.use_distributed_optimizer:
            raise ConfigError(
                "`use_precision_aware_optimizer` works with the distributed optimizer alone. Set "
                "`use_distributed_optimizer`."
            )
        if self.overlap_cpu_optimizer_d2h_h2d and not self.optimizer_cpu_offload:
            raise ConfigError(
                "`overlap_cpu_optimizer_d2h_h2d` has no effect without `optimizer_cpu_offload`. Set that too."
            )
        if not isinstance(self.other_megatron_args or {}, Mapping):
            raise ConfigError(
                f"`other_megatron_args` must be a dict, got a {type(self.other_megatron_args).__name__}."
            )


def _value_of(field: str, value: object) -> Any:
    """Return what the field's setting makes of a value, or of its variable where the value is None."""
    if value is None:
        return environ.read(f"{_PREFIX}{field}")
    setting = find_setting(f"{_PREFIX}{field}")
    return setting.value_of(setting.text_of(value), source=field)
