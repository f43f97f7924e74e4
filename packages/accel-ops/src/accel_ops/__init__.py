"""Move nested data between ranks and devices: gather, reduce, broadcast, pad, seeds, memory."""

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_ops.agreement.debug_mode import chained_operation as chained_operation
    from accel_ops.agreement.debug_mode import verify_operation as verify_operation
    from accel_ops.collectives.broadcasting import broadcast as broadcast
    from accel_ops.collectives.gathering import gather as gather
    from accel_ops.collectives.objects import broadcast_object_list as broadcast_object_list
    from accel_ops.collectives.objects import gather_object as gather_object
    from accel_ops.collectives.padding import CannotPadNestedTensorWarning as CannotPadNestedTensorWarning
    from accel_ops.collectives.padding import pad_across_processes as pad_across_processes
    from accel_ops.collectives.reduction import reduce as reduce
    from accel_ops.collectives.unknown_shapes import copy_tensor_to_devices as copy_tensor_to_devices
    from accel_ops.collectives.unknown_shapes import gather_tensor_shape as gather_tensor_shape
    from accel_ops.memory.batch_size import find_executable_batch_size as find_executable_batch_size
    from accel_ops.memory.release import clear_device_cache as clear_device_cache
    from accel_ops.memory.release import release_memory as release_memory
    from accel_ops.memory.release import should_reduce_batch_size as should_reduce_batch_size
    from accel_ops.nested.conversion import ConvertOutputsToFp32 as ConvertOutputsToFp32
    from accel_ops.nested.conversion import convert_outputs_to_fp32 as convert_outputs_to_fp32
    from accel_ops.nested.conversion import convert_to_fp32 as convert_to_fp32
    from accel_ops.nested.description import TensorInformation as TensorInformation
    from accel_ops.nested.description import find_batch_size as find_batch_size
    from accel_ops.nested.description import find_device as find_device
    from accel_ops.nested.description import get_data_structure as get_data_structure
    from accel_ops.nested.description import get_shape as get_shape
    from accel_ops.nested.description import ignorant_find_batch_size as ignorant_find_batch_size
    from accel_ops.nested.description import initialize_tensors as initialize_tensors
    from accel_ops.nested.description import is_tensor_information as is_tensor_information
    from accel_ops.nested.description import is_torch_xpu_tensor as is_torch_xpu_tensor
    from accel_ops.nested.description import listify as listify
    from accel_ops.nested.dtypes import TENSOR_INT_TO_DTYPE as TENSOR_INT_TO_DTYPE
    from accel_ops.nested.dtypes import TENSOR_TYPE_TO_INT as TENSOR_TYPE_TO_INT
    from accel_ops.nested.placement import send_to_device as send_to_device
    from accel_ops.nested.rows import concatenate as concatenate
    from accel_ops.nested.rows import pad_input_tensors as pad_input_tensors
    from accel_ops.nested.rows import slice_tensors as slice_tensors
    from accel_ops.nested.structures import honor_type as honor_type
    from accel_ops.nested.structures import is_namedtuple as is_namedtuple
    from accel_ops.nested.structures import is_torch_tensor as is_torch_tensor
    from accel_ops.nested.structures import recursively_apply as recursively_apply
    from accel_ops.random.seed import set_seed as set_seed
    from accel_ops.random.state import capture_rng_states as capture_rng_states
    from accel_ops.random.state import restore_rng_states as restore_rng_states
    from accel_ops.random.sync import synchronize_rng_state as synchronize_rng_state
    from accel_ops.random.sync import synchronize_rng_states as synchronize_rng_states
    from accel_state.arrival import debug_deadline as debug_deadline
    from accel_state.availability import is_torch_distributed_available as is_torch_distributed_available
    from accel_state.errors import DistributedOperationException as DistributedOperationException

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CannotPadNestedTensorWarning": "accel_ops.collectives.padding",
        "ConvertOutputsToFp32": "accel_ops.nested.conversion",
        "DistributedOperationException": "accel_state.errors",
        "TENSOR_INT_TO_DTYPE": "accel_ops.nested.dtypes",
        "TENSOR_TYPE_TO_INT": "accel_ops.nested.dtypes",
        "TensorInformation": "accel_ops.nested.description",
        "broadcast": "accel_ops.collectives.broadcasting",
        "broadcast_object_list": "accel_ops.collectives.objects",
        "capture_rng_states": "accel_ops.random.state",
        "chained_operation": "accel_ops.agreement.debug_mode",
        "clear_device_cache": "accel_ops.memory.release",
        "concatenate": "accel_ops.nested.rows",
        "convert_outputs_to_fp32": "accel_ops.nested.conversion",
        "convert_to_fp32": "accel_ops.nested.conversion",
        "copy_tensor_to_devices": "accel_ops.collectives.unknown_shapes",
        "debug_deadline": "accel_state.arrival",
        "find_batch_size": "accel_ops.nested.description",
        "find_device": "accel_ops.nested.description",
        "find_executable_batch_size": "accel_ops.memory.batch_size",
        "gather": "accel_ops.collectives.gathering",
        "gather_object": "accel_ops.collectives.objects",
        "gather_tensor_shape": "accel_ops.collectives.unknown_shapes",
        "get_data_structure": "accel_ops.nested.description",
        "get_shape": "accel_ops.nested.description",
        "honor_type": "accel_ops.nested.structures",
        "ignorant_find_batch_size": "accel_ops.nested.description",
        "initialize_tensors": "accel_ops.nested.description",
        "is_namedtuple": "accel_ops.nested.structures",
        "is_tensor_information": "accel_ops.nested.description",
        "is_torch_distributed_available": "accel_state.availability",
        "is_torch_tensor": "accel_ops.nested.structures",
        "is_torch_xpu_tensor": "accel_ops.nested.description",
        "listify": "accel_ops.nested.description",
        "pad_across_processes": "accel_ops.collectives.padding",
        "pad_input_tensors": "accel_ops.nested.rows",
        "recursively_apply": "accel_ops.nested.structures",
        "reduce": "accel_ops.collectives.reduction",
        "release_memory": "accel_ops.memory.release",
        "restore_rng_states": "accel_ops.random.state",
        "send_to_device": "accel_ops.nested.placement",
        "set_seed": "accel_ops.random.seed",
        "should_reduce_batch_size": "accel_ops.memory.release",
        "slice_tensors": "accel_ops.nested.rows",
        "synchronize_rng_state": "accel_ops.random.sync",
        "synchronize_rng_states": "accel_ops.random.sync",
        "verify_operation": "accel_ops.agreement.debug_mode",
    },
)
