from accel.functions import install_xla as install_xla
from accel.utils import ao as ao
from accel.utils import bnb as bnb
from accel.utils import constants as constants
from accel.utils import dataclasses as dataclasses
from accel.utils import deepspeed as deepspeed
from accel.utils import environment as environment
from accel.utils import fsdp_utils as fsdp_utils
from accel.utils import imports as imports
from accel.utils import launch as launch
from accel.utils import megatron_lm as megatron_lm
from accel.utils import memory as memory
from accel.utils import modeling as modeling
from accel.utils import offload as offload
from accel.utils import operations as operations
from accel.utils import other as other
from accel.utils import random as random
from accel.utils import transformer_engine as transformer_engine
from accel.utils import versions as versions
from accel.utils.ao import *
from accel.utils.bnb import *
from accel.utils.constants import *
from accel.utils.dataclasses import *
from accel.utils.deepspeed import *
from accel.utils.environment import *
from accel.utils.fsdp_utils import *
from accel.utils.imports import *
from accel.utils.launch import *
from accel.utils.megatron_lm import *
from accel.utils.memory import *
from accel.utils.modeling import *
from accel.utils.offload import *
from accel.utils.operations import *
from accel.utils.other import *
from accel.utils.random import *
from accel.utils.transformer_engine import *
from accel.utils.versions import *
from accel_backends import UnaveragedGradientsWarning as UnaveragedGradientsWarning
from accel_backends import resolve_plan as resolve_plan
from accel_state import CheckpointError as CheckpointError
from accel_state import ConfigError as ConfigError
from accel_state import ParallelismConfig as ParallelismConfig
from accel_state import PipelineParallelConfig as PipelineParallelConfig
from accel_state import StateError as StateError
