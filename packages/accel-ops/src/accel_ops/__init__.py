"""Move nested data between ranks and devices: gather, reduce, broadcast, pad, seeds, memory."""

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_ops.collectives import CannotPadNestedTensorWarning as CannotPadNestedTensorWarning
    from accel_ops.collectives import broadcast as broadcast
    from accel_ops.collectives import gather as gather
    from accel_ops.collectives import pad_across_processes as pad_across_processes
    from accel_ops.collectives import reduce as reduce
    from accel_ops.debug import chained_operation as chained_operation
    from accel_ops.debug import verify_operation as verify_operation
    from accel_ops.memory import clear_device_cache as clear_device_cache
    from accel_ops.memory import find_executable_batch_size as find_executable_batch_size
    from accel_ops.memory import release_memory as release_memory
    from accel_ops.memory import should_reduce_batch_size as should_reduce_batch_size
    from accel_ops.nested.convert import ConvertOutputsToFp32 as ConvertOutputsToFp32
    from accel_ops.nested.convert import convert_outputs_to_fp32 as convert_outputs_to_fp32
    from accel_ops.nested.convert import convert_to_fp32 as convert_to_fp32
    from accel_ops.nested.describe import TENSOR_INT_TO_DTYPE as TENSOR_INT_TO_DTYPE
    from accel_ops.nested.describe import TENSOR_TYPE_TO_INT as TENSOR_TYPE_TO_INT
    from accel_ops.nested.describe import TensorInformation as TensorInformation
    from accel_ops.nested.describe import find_batch_size as find_batch_size
    from accel_ops.nested.describe import find_device as find_device
    from accel_ops.nested.describe import get_data_structure as get_data_structure
    from accel_ops.nested.describe import get_shape as get_shape
    from accel_ops.nested.describe import ignorant_find_batch_size as ignorant_find_batch_size
    from accel_ops.nested.describe import initialize_tensors as initialize_tensors
    from accel_ops.nested.describe import is_tensor_information as is_tensor_information
    from accel_ops.nested.describe import is_torch_xpu_tensor as is_torch_xpu_tensor
    from accel_ops.nested.describe import listify as listify
    from accel_ops.nested.move import send_to_device as send_to_device
    from accel_ops.nested.rows import concatenate as concatenate
    from accel_ops.nested.rows import pad_input_tensors as pad_input_tensors
    from accel_ops.nested.rows import slice_tensors as slice_tensors
    from accel_ops.nested.structures import honor_type as honor_type
    from accel_ops.nested.structures import is_namedtuple as is_namedtuple
    from accel_ops.nested.structures import is_torch_tensor as is_torch_tensor
    from accel_ops.nested.structures import recursively_apply as recursively_apply
    from accel_ops.objects import broadcast_object_list as broadcast_object_list
    from accel_ops.objects import copy_tensor_to_devices as copy_tensor_to_devices
    from accel_ops.objects import gather_object as gather_object
    from accel_ops.objects import gather_tensor_shape as gather_tensor_shape
    from accel_ops.random import capture_rng_states as capture_rng_states
    from accel_ops.random import restore_rng_states as restore_rng_states
    from accel_ops.random import set_seed as set_seed
    from accel_ops.random import synchronize_rng_state as synchronize_rng_state
    from accel_ops.random import synchronize_rng_states as synchronize_rng_states
    from accel_state.arrival import debug_deadline as debug_deadline
    from accel_state.availability import is_torch_distributed_available as is_torch_distributed_available
    from accel_state.errors import DistributedOperationException as DistributedOperationException

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CannotPadNestedTensorWarning": "accel_ops.collectives",
        "ConvertOutputsToFp32": "accel_ops.nested.convert",
        "DistributedOperationException": "accel_state.errors",
        "TENSOR_INT_TO_DTYPE": "accel_ops.nested.describe",
        "TENSOR_TYPE_TO_INT": "accel_ops.nested.describe",
        "TensorInformation": "accel_ops.nested.describe",
        "broadcast": "accel_ops.collectives",
        "broadcast_object_list": "accel_ops.objects",
        "capture_rng_states": "accel_ops.random",
        "chained_operation": "accel_ops.debug",
        "clear_device_cache": "accel_ops.memory",
        "concatenate": "accel_ops.nested.rows",
        "convert_outputs_to_fp32": "accel_ops.nested.convert",
        "convert_to_fp32": "accel_ops.nested.convert",
        "copy_tensor_to_devices": "accel_ops.objects",
        "debug_deadline": "accel_state.arrival",
        "find_batch_size": "accel_ops.nested.describe",
        "find_device": "accel_ops.nested.describe",
        "find_executable_batch_size": "accel_ops.memory",
        "gather": "accel_ops.collectives",
        "gather_object": "accel_ops.objects",
        "gather_tensor_shape": "accel_ops.objects",
        "get_data_structure": "accel_ops.nested.describe",
        "get_shape": "accel_ops.nested.describe",
        "honor_type": "accel_ops.nested.structures",
        "ignorant_find_batch_size": "accel_ops.nested.describe",
        "initialize_tensors": "accel_ops.nested.describe",
        "is_namedtuple": "accel_ops.nested.structures",
        "is_tensor_information": "accel_ops.nested.describe",
        "is_torch_distributed_available": "accel_state.availability",
        "is_torch_tensor": "accel_ops.nested.structures",
        "is_torch_xpu_tensor": "accel_ops.nested.describe",
        "listify": "accel_ops.nested.describe",
        "pad_across_processes": "accel_ops.collectives",
        "pad_input_tensors": "accel_ops.nested.rows",
        "recursively_apply": "accel_ops.nested.structures",
        "reduce": "accel_ops.collectives",
        "release_memory": "accel_ops.memory",
        "restore_rng_states": "accel_ops.random",
        "send_to_device": "accel_ops.nested.move",
        "set_seed": "accel_ops.random",
        "should_reduce_batch_size": "accel_ops.memory",
        "slice_tensors": "accel_ops.nested.rows",
        "synchronize_rng_state": "accel_ops.random",
        "synchronize_rng_states": "accel_ops.random",
        "verify_operation": "accel_ops.debug",
    },
)
