"""Move nested data between ranks and devices: gather, reduce, broadcast, pad, seeds, memory."""

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_ops.batch_size import find_executable_batch_size as find_executable_batch_size
    from accel_ops.broadcasting import broadcast as broadcast
    from accel_ops.conversion import ConvertOutputsToFp32 as ConvertOutputsToFp32
    from accel_ops.conversion import convert_outputs_to_fp32 as convert_outputs_to_fp32
    from accel_ops.conversion import convert_to_fp32 as convert_to_fp32
    from accel_ops.debug import chained_operation as chained_operation
    from accel_ops.debug import debug_deadline as debug_deadline
    from accel_ops.debug import verify_operation as verify_operation
    from accel_ops.description import TensorInformation as TensorInformation
    from accel_ops.description import find_batch_size as find_batch_size
    from accel_ops.description import find_device as find_device
    from accel_ops.description import get_data_structure as get_data_structure
    from accel_ops.description import get_shape as get_shape
    from accel_ops.description import ignorant_find_batch_size as ignorant_find_batch_size
    from accel_ops.description import initialize_tensors as initialize_tensors
    from accel_ops.description import is_tensor_information as is_tensor_information
    from accel_ops.description import is_torch_xpu_tensor as is_torch_xpu_tensor
    from accel_ops.description import listify as listify
    from accel_ops.dtypes import TENSOR_INT_TO_DTYPE as TENSOR_INT_TO_DTYPE
    from accel_ops.dtypes import TENSOR_TYPE_TO_INT as TENSOR_TYPE_TO_INT
    from accel_ops.gathering import gather as gather
    from accel_ops.handover import copy_tensor_to_devices as copy_tensor_to_devices
    from accel_ops.handover import gather_tensor_shape as gather_tensor_shape
    from accel_ops.memory import clear_device_cache as clear_device_cache
    from accel_ops.memory import release_memory as release_memory
    from accel_ops.memory import should_reduce_batch_size as should_reduce_batch_size
    from accel_ops.objects import broadcast_object_list as broadcast_object_list
    from accel_ops.objects import gather_object as gather_object
    from accel_ops.padding import CannotPadNestedTensorWarning as CannotPadNestedTensorWarning
    from accel_ops.padding import pad_across_processes as pad_across_processes
    from accel_ops.placement import send_to_device as send_to_device
    from accel_ops.reduction import reduce as reduce
    from accel_ops.rng_state import capture_rng_states as capture_rng_states
    from accel_ops.rng_state import restore_rng_states as restore_rng_states
    from accel_ops.rng_sync import synchronize_rng_state as synchronize_rng_state
    from accel_ops.rng_sync import synchronize_rng_states as synchronize_rng_states
    from accel_ops.rows import concatenate as concatenate
    from accel_ops.rows import pad_input_tensors as pad_input_tensors
    from accel_ops.rows import slice_tensors as slice_tensors
    from accel_ops.seeding import set_seed as set_seed
    from accel_ops.structures import honor_type as honor_type
    from accel_ops.structures import is_namedtuple as is_namedtuple
    from accel_ops.structures import is_torch_tensor as is_torch_tensor
    from accel_ops.structures import recursively_apply as recursively_apply
    from accel_state.availability import is_torch_distributed_available as is_torch_distributed_available
    from accel_state.errors import DistributedOperationException as DistributedOperationException

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CannotPadNestedTensorWarning": "accel_ops.padding",
        "ConvertOutputsToFp32": "accel_ops.conversion",
        "DistributedOperationException": "accel_state.errors",
        "TENSOR_INT_TO_DTYPE": "accel_ops.dtypes",
        "TENSOR_TYPE_TO_INT": "accel_ops.dtypes",
        "TensorInformation": "accel_ops.description",
        "broadcast": "accel_ops.broadcasting",
        "broadcast_object_list": "accel_ops.objects",
        "capture_rng_states": "accel_ops.rng_state",
        "chained_operation": "accel_ops.debug",
        "clear_device_cache": "accel_ops.memory",
        "concatenate": "accel_ops.rows",
        "convert_outputs_to_fp32": "accel_ops.conversion",
        "convert_to_fp32": "accel_ops.conversion",
        "copy_tensor_to_devices": "accel_ops.handover",
        "debug_deadline": "accel_ops.debug",
        "find_batch_size": "accel_ops.description",
        "find_device": "accel_ops.description",
        "find_executable_batch_size": "accel_ops.batch_size",
        "gather": "accel_ops.gathering",
        "gather_object": "accel_ops.objects",
        "gather_tensor_shape": "accel_ops.handover",
        "get_data_structure": "accel_ops.description",
        "get_shape": "accel_ops.description",
        "honor_type": "accel_ops.structures",
        "ignorant_find_batch_size": "accel_ops.description",
        "initialize_tensors": "accel_ops.description",
        "is_namedtuple": "accel_ops.structures",
        "is_tensor_information": "accel_ops.description",
        "is_torch_distributed_available": "accel_state.availability",
        "is_torch_tensor": "accel_ops.structures",
        "is_torch_xpu_tensor": "accel_ops.description",
        "listify": "accel_ops.description",
        "pad_across_processes": "accel_ops.padding",
        "pad_input_tensors": "accel_ops.rows",
        "recursively_apply": "accel_ops.structures",
        "reduce": "accel_ops.reduction",
        "release_memory": "accel_ops.memory",
        "restore_rng_states": "accel_ops.rng_state",
        "send_to_device": "accel_ops.placement",
        "set_seed": "accel_ops.seeding",
        "should_reduce_batch_size": "accel_ops.memory",
        "slice_tensors": "accel_ops.rows",
        "synchronize_rng_state": "accel_ops.rng_sync",
        "synchronize_rng_states": "accel_ops.rng_sync",
        "verify_operation": "accel_ops.debug",
    },
)
