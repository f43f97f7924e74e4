"""AWS Trainium and Inferentia, driven by `torch_neuronx` (https://awsdocs-neuron.readthedocs-hosted.com)."""

from __future__ import annotations

from typing import ClassVar

from accel_state.devices.torch_module import TorchModuleBackend
from accel_state.enums import DistributedType


class NeuronBackend(TorchModuleBackend):
    """One NeuronCore per process; the processes talk over the Neuron runtime."""

    name: ClassVar[str] = "neuron"
    plugin: ClassVar[str | None] = "torch_neuronx"
    collective_backend: ClassVar[str | None] = "neuron"
    distributed_type: ClassVar[DistributedType] = DistributedType.MULTI_NEURON
