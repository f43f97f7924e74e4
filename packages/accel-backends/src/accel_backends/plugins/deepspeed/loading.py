"""DeepSpeed itself, imported when it is needed first, for the device and the process group of the run."""

from __future__ import annotations

from types import ModuleType

from torch.torch_version import TorchVersion

from accel_state.availability import is_deepspeed_available
from accel_state.environment import export, patch_environment, variable
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.process_group import backend_of_group
from accel_state.runtime import Runtime

OLDEST_RELEASE = "0.18.9"
"""The first that describes the shards of AutoTP; gradients of a loss over several engines need 0.18.4."""


def load_deepspeed(runtime: Runtime) -> ModuleType:
    """Import DeepSpeed and return it; it then works on the device of this run, whose processes have a group.

    Sets ``LOCAL_RANK`` where no launcher has, and the ranks beside it: DeepSpeed reads it whenever it makes a tensor of
    its own, and a later `Accelerator` of this process expects all of them or none.

    Raises:
        NotAvailableError: If DeepSpeed is not installed, or too old.
        ConfigError: If it was imported before, for another device.
    """
    if not is_deepspeed_available():
        raise NotAvailableError(
            "DeepSpeed needs the package `deepspeed`, which is not installed. Run `pip install deepspeed`."
        )
    if variable("LOCAL_RANK") is None:
        topology = runtime.topology
        export(
            {
                "LOCAL_RANK": str(topology.local_rank),
                "RANK": str(topology.rank),
                "WORLD_SIZE": str(topology.world_size),
            }
        )
    wanted = runtime.device.type
    # DeepSpeed takes an accelerator that it finds, whatever the run computes on.
    with patch_environment(ds_accelerator=variable("DS_ACCELERATOR") or wanted):
        import deepspeed
    if TorchVersion(deepspeed.__version__) < OLDEST_RELEASE:
        raise NotAvailableError(
            f"DeepSpeed {deepspeed.__version__} is installed, but {OLDEST_RELEASE} or newer is needed. "
            f"Run `pip install --upgrade 'deepspeed>={OLDEST_RELEASE}'`."
        )
    found = deepspeed.get_accelerator().device_name()
    if found != wanted:
        raise ConfigError(
            f"DeepSpeed was imported for `{found}` before the run chose `{wanted}`. Build the `Accelerator` before "
            f"anything imports `deepspeed`, or set `DS_ACCELERATOR={wanted}`."
        )
    runtime.ensure_group()
    module: ModuleType = deepspeed
    return module


def join_group(deepspeed: ModuleType) -> None:
    """Let DeepSpeed know the process group, which on CPUs loads one of its operators.

    Its `zero.Init` needs it before there is an engine: that reads the number of ranks before it would look for a group.
    """
    deepspeed.init_distributed(
        dist_backend=backend_of_group(deepspeed.get_accelerator().device_name()), dist_init_required=False
    )
