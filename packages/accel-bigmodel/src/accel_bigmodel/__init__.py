"""Load and run PyTorch models larger than memory."""

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_bigmodel.dispatch import cpu_offload as cpu_offload
    from accel_bigmodel.dispatch import cpu_offload_with_hook as cpu_offload_with_hook
    from accel_bigmodel.dispatch import disk_offload as disk_offload
    from accel_bigmodel.dispatch import dispatch_model as dispatch_model
    from accel_bigmodel.dispatch import (
        load_checkpoint_and_dispatch as load_checkpoint_and_dispatch,
    )
    from accel_bigmodel.dtypes import dtype_byte_size as dtype_byte_size
    from accel_bigmodel.estimate.command import create_ascii_table as create_ascii_table
    from accel_bigmodel.estimate.command import estimate_command as estimate_command
    from accel_bigmodel.estimate.command import estimate_command_parser as estimate_command_parser
    from accel_bigmodel.estimate.command import gather_data as gather_data
    from accel_bigmodel.estimate.memory import add_timm_hub_prefix as add_timm_hub_prefix
    from accel_bigmodel.estimate.memory import check_has_model as check_has_model
    from accel_bigmodel.estimate.memory import create_empty_model as create_empty_model
    from accel_bigmodel.estimate.memory import estimate_training_usage as estimate_training_usage
    from accel_bigmodel.estimate.memory import verify_on_hub as verify_on_hub
    from accel_bigmodel.hooks.align import AlignDevicesHook as AlignDevicesHook
    from accel_bigmodel.hooks.base import ModelHook as ModelHook
    from accel_bigmodel.hooks.base import SequentialHook as SequentialHook
    from accel_bigmodel.hooks.base import add_hook_to_module as add_hook_to_module
    from accel_bigmodel.hooks.base import remove_hook_from_module as remove_hook_from_module
    from accel_bigmodel.hooks.base import remove_hook_from_submodules as remove_hook_from_submodules
    from accel_bigmodel.hooks.blocks import attach_align_device_hook as attach_align_device_hook
    from accel_bigmodel.hooks.blocks import (
        attach_align_device_hook_on_blocks as attach_align_device_hook_on_blocks,
    )
    from accel_bigmodel.hooks.blocks import attach_execution_device_hook as attach_execution_device_hook
    from accel_bigmodel.hooks.casting import (
        SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING as SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING,
    )
    from accel_bigmodel.hooks.casting import LayerwiseCastingHook as LayerwiseCastingHook
    from accel_bigmodel.hooks.casting import attach_layerwise_casting_hooks as attach_layerwise_casting_hooks
    from accel_bigmodel.hooks.cpu_offload import CpuOffload as CpuOffload
    from accel_bigmodel.hooks.cpu_offload import UserCpuOffloadHook as UserCpuOffloadHook
    from accel_bigmodel.loading.checkpoints import load_checkpoint_in_model as load_checkpoint_in_model
    from accel_bigmodel.loading.checkpoints import load_state_dict as load_state_dict
    from accel_bigmodel.offload.state import align_module_device as align_module_device
    from accel_bigmodel.offload.state import get_state_dict_from_offload as get_state_dict_from_offload
    from accel_bigmodel.offload.state import get_state_dict_offloaded_model as get_state_dict_offloaded_model
    from accel_bigmodel.offload.state import has_offloaded_params as has_offloaded_params
    from accel_bigmodel.offload.store import OffloadedWeightsLoader as OffloadedWeightsLoader
    from accel_bigmodel.offload.store import PrefixedDataset as PrefixedDataset
    from accel_bigmodel.offload.store import (
        extract_submodules_state_dict as extract_submodules_state_dict,
    )
    from accel_bigmodel.offload.store import load_offloaded_weight as load_offloaded_weight
    from accel_bigmodel.offload.store import load_offloaded_weights as load_offloaded_weights
    from accel_bigmodel.offload.store import offload_state_dict as offload_state_dict
    from accel_bigmodel.offload.store import offload_weight as offload_weight
    from accel_bigmodel.offload.store import save_offload_index as save_offload_index
    from accel_bigmodel.planning.allocation import infer_auto_device_map as infer_auto_device_map
    from accel_bigmodel.planning.device_maps import check_device_map as check_device_map
    from accel_bigmodel.planning.device_maps import (
        check_tied_parameters_on_same_device as check_tied_parameters_on_same_device,
    )
    from accel_bigmodel.planning.device_maps import clean_device_map as clean_device_map
    from accel_bigmodel.planning.max_memory import get_balanced_memory as get_balanced_memory
    from accel_bigmodel.planning.max_memory import get_max_memory as get_max_memory
    from accel_bigmodel.planning.sizes import calculate_maximum_sizes as calculate_maximum_sizes
    from accel_bigmodel.planning.sizes import compute_module_sizes as compute_module_sizes
    from accel_bigmodel.planning.sizes import (
        compute_module_total_buffer_size as compute_module_total_buffer_size,
    )
    from accel_bigmodel.planning.sizes import fallback_allocate as fallback_allocate
    from accel_bigmodel.planning.sizes import get_max_layer_size as get_max_layer_size
    from accel_bigmodel.planning.sizes import get_module_leaves as get_module_leaves
    from accel_bigmodel.planning.sizes import get_module_size_with_ties as get_module_size_with_ties
    from accel_bigmodel.quantization.configuration import BnbQuantizationConfig as BnbQuantizationConfig
    from accel_bigmodel.quantization.layers import get_keys_to_not_convert as get_keys_to_not_convert
    from accel_bigmodel.quantization.layers import get_parameter_device as get_parameter_device
    from accel_bigmodel.quantization.layers import has_4bit_bnb_layers as has_4bit_bnb_layers
    from accel_bigmodel.quantization.layers import replace_with_bnb_layers as replace_with_bnb_layers
    from accel_bigmodel.quantization.loading import (
        get_quantized_model_device_map as get_quantized_model_device_map,
    )
    from accel_bigmodel.quantization.loading import load_and_quantize_model as load_and_quantize_model
    from accel_bigmodel.quantization.loading import quantize_and_offload_8bit as quantize_and_offload_8bit
    from accel_bigmodel.skeleton import init_empty_weights as init_empty_weights
    from accel_bigmodel.skeleton import init_on_device as init_on_device
    from accel_bigmodel.tensors import check_device_same as check_device_same
    from accel_bigmodel.tensors import find_tied_parameters as find_tied_parameters
    from accel_bigmodel.tensors import get_non_persistent_buffers as get_non_persistent_buffers
    from accel_bigmodel.tensors import named_module_tensors as named_module_tensors
    from accel_bigmodel.tensors import recursive_getattr as recursive_getattr
    from accel_bigmodel.tensors import retie_parameters as retie_parameters
    from accel_bigmodel.tensors import set_module_tensor_to_device as set_module_tensor_to_device
    from accel_bigmodel.ties import check_tied_parameters_in_config as check_tied_parameters_in_config
    from accel_bigmodel.ties import ensure_weights_retied as ensure_weights_retied
    from accel_checkpoint.formats.weight_names import MODEL_NAME as MODEL_NAME
    from accel_checkpoint.formats.weight_names import SAFE_MODEL_NAME as SAFE_MODEL_NAME
    from accel_checkpoint.formats.weight_names import SAFE_WEIGHTS_INDEX_NAME as SAFE_WEIGHTS_INDEX_NAME
    from accel_checkpoint.formats.weight_names import SAFE_WEIGHTS_NAME as SAFE_WEIGHTS_NAME
    from accel_checkpoint.formats.weight_names import SAFE_WEIGHTS_PATTERN_NAME as SAFE_WEIGHTS_PATTERN_NAME
    from accel_checkpoint.formats.weight_names import WEIGHTS_INDEX_NAME as WEIGHTS_INDEX_NAME
    from accel_checkpoint.formats.weight_names import WEIGHTS_NAME as WEIGHTS_NAME
    from accel_checkpoint.formats.weight_names import WEIGHTS_PATTERN_NAME as WEIGHTS_PATTERN_NAME
    from accel_checkpoint.merging import merge_fsdp_weights as merge_fsdp_weights
    from accel_checkpoint.saving.model_weights import save_model as save_model
    from accel_ops.byte_sizes import convert_bytes as convert_bytes
    from accel_ops.byte_sizes import convert_file_size_to_int as convert_file_size_to_int
    from accel_ops.shared_tensors import (
        clean_state_dict_for_safetensors as clean_state_dict_for_safetensors,
    )
    from accel_ops.shared_tensors import id_tensor_storage as id_tensor_storage

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AlignDevicesHook": "accel_bigmodel.hooks.align",
        "BnbQuantizationConfig": "accel_bigmodel.quantization.configuration",
        "CpuOffload": "accel_bigmodel.hooks.cpu_offload",
        "LayerwiseCastingHook": "accel_bigmodel.hooks.casting",
        "MODEL_NAME": "accel_checkpoint.formats.weight_names",
        "ModelHook": "accel_bigmodel.hooks.base",
        "OffloadedWeightsLoader": "accel_bigmodel.offload.store",
        "PrefixedDataset": "accel_bigmodel.offload.store",
        "SAFE_MODEL_NAME": "accel_checkpoint.formats.weight_names",
        "SAFE_WEIGHTS_INDEX_NAME": "accel_checkpoint.formats.weight_names",
        "SAFE_WEIGHTS_NAME": "accel_checkpoint.formats.weight_names",
        "SAFE_WEIGHTS_PATTERN_NAME": "accel_checkpoint.formats.weight_names",
        "SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING": "accel_bigmodel.hooks.casting",
        "SequentialHook": "accel_bigmodel.hooks.base",
        "UserCpuOffloadHook": "accel_bigmodel.hooks.cpu_offload",
        "WEIGHTS_INDEX_NAME": "accel_checkpoint.formats.weight_names",
        "WEIGHTS_NAME": "accel_checkpoint.formats.weight_names",
        "WEIGHTS_PATTERN_NAME": "accel_checkpoint.formats.weight_names",
        "add_hook_to_module": "accel_bigmodel.hooks.base",
        "add_timm_hub_prefix": "accel_bigmodel.estimate.memory",
        "align_module_device": "accel_bigmodel.offload.state",
        "attach_align_device_hook": "accel_bigmodel.hooks.blocks",
        "attach_align_device_hook_on_blocks": "accel_bigmodel.hooks.blocks",
        "attach_execution_device_hook": "accel_bigmodel.hooks.blocks",
        "attach_layerwise_casting_hooks": "accel_bigmodel.hooks.casting",
        "calculate_maximum_sizes": "accel_bigmodel.planning.sizes",
        "check_device_map": "accel_bigmodel.planning.device_maps",
        "check_device_same": "accel_bigmodel.tensors",
        "check_has_model": "accel_bigmodel.estimate.memory",
        "check_tied_parameters_in_config": "accel_bigmodel.ties",
        "check_tied_parameters_on_same_device": "accel_bigmodel.planning.device_maps",
        "clean_device_map": "accel_bigmodel.planning.device_maps",
        "clean_state_dict_for_safetensors": "accel_ops.shared_tensors",
        "compute_module_sizes": "accel_bigmodel.planning.sizes",
        "compute_module_total_buffer_size": "accel_bigmodel.planning.sizes",
        "convert_bytes": "accel_ops.byte_sizes",
        "convert_file_size_to_int": "accel_ops.byte_sizes",
        "cpu_offload": "accel_bigmodel.dispatch",
        "cpu_offload_with_hook": "accel_bigmodel.dispatch",
        "create_ascii_table": "accel_bigmodel.estimate.command",
        "create_empty_model": "accel_bigmodel.estimate.memory",
        "disk_offload": "accel_bigmodel.dispatch",
        "dispatch_model": "accel_bigmodel.dispatch",
        "dtype_byte_size": "accel_bigmodel.dtypes",
        "ensure_weights_retied": "accel_bigmodel.ties",
        "estimate_command": "accel_bigmodel.estimate.command",
        "estimate_command_parser": "accel_bigmodel.estimate.command",
        "estimate_training_usage": "accel_bigmodel.estimate.memory",
        "extract_submodules_state_dict": "accel_bigmodel.offload.store",
        "fallback_allocate": "accel_bigmodel.planning.sizes",
        "find_tied_parameters": "accel_bigmodel.tensors",
        "gather_data": "accel_bigmodel.estimate.command",
        "get_balanced_memory": "accel_bigmodel.planning.max_memory",
        "get_keys_to_not_convert": "accel_bigmodel.quantization.layers",
        "get_max_layer_size": "accel_bigmodel.planning.sizes",
        "get_max_memory": "accel_bigmodel.planning.max_memory",
        "get_module_leaves": "accel_bigmodel.planning.sizes",
        "get_module_size_with_ties": "accel_bigmodel.planning.sizes",
        "get_non_persistent_buffers": "accel_bigmodel.tensors",
        "get_parameter_device": "accel_bigmodel.quantization.layers",
        "get_quantized_model_device_map": "accel_bigmodel.quantization.loading",
        "get_state_dict_from_offload": "accel_bigmodel.offload.state",
        "get_state_dict_offloaded_model": "accel_bigmodel.offload.state",
        "has_4bit_bnb_layers": "accel_bigmodel.quantization.layers",
        "has_offloaded_params": "accel_bigmodel.offload.state",
        "id_tensor_storage": "accel_ops.shared_tensors",
        "infer_auto_device_map": "accel_bigmodel.planning.allocation",
        "init_empty_weights": "accel_bigmodel.skeleton",
        "init_on_device": "accel_bigmodel.skeleton",
        "load_and_quantize_model": "accel_bigmodel.quantization.loading",
        "load_checkpoint_and_dispatch": "accel_bigmodel.dispatch",
        "load_checkpoint_in_model": "accel_bigmodel.loading.checkpoints",
        "load_offloaded_weight": "accel_bigmodel.offload.store",
        "load_offloaded_weights": "accel_bigmodel.offload.store",
        "load_state_dict": "accel_bigmodel.loading.checkpoints",
        "named_module_tensors": "accel_bigmodel.tensors",
        "offload_state_dict": "accel_bigmodel.offload.store",
        "offload_weight": "accel_bigmodel.offload.store",
        "quantize_and_offload_8bit": "accel_bigmodel.quantization.loading",
        "recursive_getattr": "accel_bigmodel.tensors",
        "remove_hook_from_module": "accel_bigmodel.hooks.base",
        "remove_hook_from_submodules": "accel_bigmodel.hooks.base",
        "replace_with_bnb_layers": "accel_bigmodel.quantization.layers",
        "retie_parameters": "accel_bigmodel.tensors",
        "merge_fsdp_weights": "accel_checkpoint.merging",
        "save_model": "accel_checkpoint.saving.model_weights",
        "save_offload_index": "accel_bigmodel.offload.store",
        "set_module_tensor_to_device": "accel_bigmodel.tensors",
        "verify_on_hub": "accel_bigmodel.estimate.memory",
    },
)
