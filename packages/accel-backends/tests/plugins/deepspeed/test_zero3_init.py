import subprocess
import sys

import pytest

from accel_backends.plugins.deepspeed.zero3_init import announce
from accel_state.availability import is_deepspeed_available
from accel_state.errors import NotAvailableError


@pytest.mark.skipif(is_deepspeed_available(), reason="DeepSpeed is installed")
def test_models_cannot_be_built_sharded_without_deepspeed():
    with pytest.raises(
        NotAvailableError, match="`zero3_init_flag` lets `transformers` build models by DeepSpeed."
    ):
        announce({"zero_optimization": {"stage": 3}})


def test_hiding_a_config_does_not_import_transformers():
    program = (
        "import sys; from accel_backends.plugins.deepspeed.zero3_init import withdraw; withdraw(); "
        "print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
