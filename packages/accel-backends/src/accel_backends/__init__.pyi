from accel_backends.compile import compile_model as compile_model
from accel_backends.compile import compile_regions as compile_regions
from accel_backends.compile import compile_regions_deepspeed as compile_regions_deepspeed
from accel_backends.compile import has_compiled_regions as has_compiled_regions
from accel_backends.handlers.collection import Handlers as Handlers
from accel_backends.handlers.collection import collect as collect
from accel_backends.handlers.ddp import DistributedDataParallelKwargs as DistributedDataParallelKwargs
from accel_backends.handlers.fp8 import AORecipeKwargs as AORecipeKwargs
from accel_backends.handlers.fp8 import FP8RecipeKwargs as FP8RecipeKwargs
from accel_backends.handlers.fp8 import MSAMPRecipeKwargs as MSAMPRecipeKwargs
from accel_backends.handlers.fp8 import TERecipeKwargs as TERecipeKwargs
from accel_backends.handlers.precision import AutocastKwargs as AutocastKwargs
from accel_backends.handlers.precision import GradScalerKwargs as GradScalerKwargs
from accel_backends.handlers.profile import ProfileKwargs as ProfileKwargs
from accel_backends.module_lookup import get_model_tp_size as get_model_tp_size
from accel_backends.module_lookup import get_module_children_bottom_up as get_module_children_bottom_up
from accel_backends.module_lookup import get_module_class_from_name as get_module_class_from_name
from accel_backends.module_lookup import get_parameters_from_modules as get_parameters_from_modules
from accel_backends.module_lookup import is_peft_model as is_peft_model
from accel_backends.module_lookup import model_has_dtensor as model_has_dtensor
from accel_backends.optimizer import AcceleratedOptimizer as AcceleratedOptimizer
from accel_backends.optimizer import move_to_device as move_to_device
from accel_backends.plans.plan import ParallelPlan as ParallelPlan
from accel_backends.plans.repeated_blocks import has_repeated_blocks as has_repeated_blocks
from accel_backends.plans.repeated_blocks import is_repeated_blocks as is_repeated_blocks
from accel_backends.plans.sources import resolve_plan as resolve_plan
from accel_backends.plugins.deepspeed.hf_config import HfDeepSpeedConfig as HfDeepSpeedConfig
from accel_backends.plugins.deepspeed.plugin import DeepSpeedPlugin as DeepSpeedPlugin
from accel_backends.plugins.deepspeed.plugin import get_active_deepspeed_plugin as get_active_deepspeed_plugin
from accel_backends.plugins.dynamo import TorchDynamoPlugin as TorchDynamoPlugin
from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin as FullyShardedDataParallelPlugin
from accel_backends.plugins.megatron import MegatronLMPlugin as MegatronLMPlugin
from accel_backends.plugins.megatron_parsers import (
    MODEL_CONFIGS_TO_MEGATRON_PARSERS as MODEL_CONFIGS_TO_MEGATRON_PARSERS,
)
from accel_backends.plugins.megatron_parsers import (
    add_model_config_to_megatron_parser as add_model_config_to_megatron_parser,
)
from accel_backends.plugins.megatron_parsers import parse_bert_config as parse_bert_config
from accel_backends.plugins.megatron_parsers import parse_glm4_moe_config as parse_glm4_moe_config
from accel_backends.plugins.megatron_parsers import parse_gpt2_config as parse_gpt2_config
from accel_backends.plugins.megatron_parsers import parse_llama_config as parse_llama_config
from accel_backends.plugins.megatron_parsers import parse_t5_config as parse_t5_config
from accel_backends.plugins.ram_efficient_loading import (
    disable_fsdp_ram_efficient_loading as disable_fsdp_ram_efficient_loading,
)
from accel_backends.plugins.ram_efficient_loading import (
    enable_fsdp_ram_efficient_loading as enable_fsdp_ram_efficient_loading,
)
from accel_backends.plugins.tensor_parallel import TorchTensorParallelPlugin as TorchTensorParallelPlugin
from accel_backends.precisions.autocast import (
    get_mixed_precision_context_manager as get_mixed_precision_context_manager,
)
from accel_backends.precisions.fp8.te_forward import apply_fp8_autowrap as apply_fp8_autowrap
from accel_backends.precisions.fp8.te_forward import contextual_fp8_autocast as contextual_fp8_autocast
from accel_backends.precisions.fp8.te_layers import convert_model as convert_model
from accel_backends.precisions.fp8.te_layers import (
    has_transformer_engine_layers as has_transformer_engine_layers,
)
from accel_backends.precisions.fp8.torchao_layers import convert_model_to_fp8_ao as convert_model_to_fp8_ao
from accel_backends.precisions.fp8.torchao_layers import (
    filter_first_and_last_linear_layers as filter_first_and_last_linear_layers,
)
from accel_backends.precisions.fp8.torchao_layers import filter_linear_layers as filter_linear_layers
from accel_backends.precisions.fp8.torchao_layers import (
    find_first_last_linear_layers as find_first_last_linear_layers,
)
from accel_backends.precisions.fp8.torchao_layers import has_ao_layers as has_ao_layers
from accel_backends.precisions.loss_scaler import LossScaler as LossScaler
from accel_backends.precisions.loss_scaler import get_grad_scaler as get_grad_scaler
from accel_backends.precisions.precision import Precision as Precision
from accel_backends.precisions.precision import select_precision as select_precision
from accel_backends.scheduler import AcceleratedScheduler as AcceleratedScheduler
from accel_backends.strategies.bundle import Bundle as Bundle
from accel_backends.strategies.bundle import Placement as Placement
from accel_backends.strategies.capabilities import Capabilities as Capabilities
from accel_backends.strategies.capabilities import Sync as Sync
from accel_backends.strategies.context import SchedulerSettings as SchedulerSettings
from accel_backends.strategies.context import StrategyContext as StrategyContext
from accel_backends.strategies.ddp import trigger_sync_in_backward as trigger_sync_in_backward
from accel_backends.strategies.ddp_averaging import UnaveragedGradientsWarning as UnaveragedGradientsWarning
from accel_backends.strategies.deepspeed.cpu_optimizers import (
    map_pytorch_optim_to_deepspeed as map_pytorch_optim_to_deepspeed,
)
from accel_backends.strategies.deepspeed.dummies import DummyOptim as DummyOptim
from accel_backends.strategies.deepspeed.dummies import DummyScheduler as DummyScheduler
from accel_backends.strategies.deepspeed.gathered import GatheredParameters as GatheredParameters
from accel_backends.strategies.deepspeed.wrappers import DeepSpeedEngineWrapper as DeepSpeedEngineWrapper
from accel_backends.strategies.deepspeed.wrappers import (
    DeepSpeedOptimizerWrapper as DeepSpeedOptimizerWrapper,
)
from accel_backends.strategies.deepspeed.wrappers import (
    DeepSpeedSchedulerWrapper as DeepSpeedSchedulerWrapper,
)
from accel_backends.strategies.megatron.data_ranks import (
    avg_losses_across_data_parallel_group as avg_losses_across_data_parallel_group,
)
from accel_backends.strategies.megatron.data_ranks import (
    gather_across_data_parallel_groups as gather_across_data_parallel_groups,
)
from accel_backends.strategies.megatron.datasets import MegatronLMDummyDataLoader as MegatronLMDummyDataLoader
from accel_backends.strategies.megatron.engine import MegatronEngine as MegatronEngine
from accel_backends.strategies.megatron.train_steps import AbstractTrainStep as AbstractTrainStep
from accel_backends.strategies.megatron.train_steps import BertTrainStep as BertTrainStep
from accel_backends.strategies.megatron.train_steps import GPTTrainStep as GPTTrainStep
from accel_backends.strategies.megatron.train_steps import T5TrainStep as T5TrainStep
from accel_backends.strategies.megatron.wrappers import MegatronLMDummyScheduler as MegatronLMDummyScheduler
from accel_backends.strategies.megatron.wrappers import (
    MegatronLMOptimizerWrapper as MegatronLMOptimizerWrapper,
)
from accel_backends.strategies.megatron.wrappers import (
    MegatronLMSchedulerWrapper as MegatronLMSchedulerWrapper,
)
from accel_backends.strategies.selection import select_strategy as select_strategy
from accel_backends.strategies.strategy import Strategy as Strategy
from accel_backends.strategies.strategy import full_model_state as full_model_state
from accel_backends.unwrap import extract_model_from_parallel as extract_model_from_parallel
from accel_backends.unwrap import is_compiled_module as is_compiled_module
from accel_backends.unwrap import register_container as register_container

__version__: str
