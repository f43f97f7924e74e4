"""torch_xla on the CPU, with the torch that it was built for.

That torch is a CUDA build: stubs take the place of CUDA's libraries, 6.6 GB of wheels that a CPU does not need.
"""

from __future__ import annotations

from tools.engines.protocol import Engine
from tools.setup.cuda_stubs import make_stubs
from tools.setup.environment import Environment, shown
from tools.setup.running import timed
from tools.workspace import ROOT

STUBS = ROOT / ".venvs" / "xla" / "stubs"


def stub_cuda(environment: Environment) -> None:
    """Make the stubs, once for each environment."""
    (libraries,) = environment.folder.glob("lib/python*/site-packages/torch/lib")
    if not STUBS.exists():
        with timed(f"making stubs of CUDA's libraries in {shown(STUBS)}"):
            make_stubs(libraries, STUBS)


engine = Engine(
    name="xla",
    purpose="torch_xla on the CPU: one device, and two of one process",
    tests=(
        "integration-tests/test_xla.py",
        "integration-tests/test_xla_training.py",
        "tools/tests/setup/test_cuda_stubs.py",
    ),
    environment=Environment("xla"),
    debian=("binutils", "gcc"),
    variables={"LD_LIBRARY_PATH": str(STUBS), "PJRT_DEVICE": "CPU"},
    prepare=stub_cuda,
)
