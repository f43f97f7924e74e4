from accel_checkpoint.folder import CheckpointFolder as CheckpointFolder
from accel_checkpoint.folder import SavedCheckpoint as SavedCheckpoint
from accel_checkpoint.formats.torch_files import trusted_files as trusted_files
from accel_checkpoint.functions import TORCH_SAFE_GLOBALS as TORCH_SAFE_GLOBALS
from accel_checkpoint.functions import load as load
from accel_checkpoint.functions import load_custom_state as load_custom_state
from accel_checkpoint.functions import save as save
from accel_checkpoint.functions import save_custom_state as save_custom_state
from accel_checkpoint.merging import merge_fsdp_weights as merge_fsdp_weights
from accel_checkpoint.saving.handle import SaveHandle as SaveHandle
from accel_checkpoint.saving.model_weights import save_model as save_model
from accel_checkpoint.saving.retention import Retention as Retention
from accel_checkpoint.saving.transaction import Stage as Stage

__version__: str
