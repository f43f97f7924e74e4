import pytest

from accel_backends import MegatronLMPlugin
from accel_backends.strategies.megatron.model_parts import model_arguments
from accel_state.mesh_layout import MeshLayout


def test_files_of_a_tokenizer_are_reported_to_have_no_effect():
    plugin = MegatronLMPlugin(other_megatron_args={"vocab_file": "vocab.json", "num_layers": 2})
    with pytest.warns(UserWarning, match="`vocab_file` of `other_megatron_args` has no effect"):
        arguments = model_arguments(plugin, MeshLayout())
    assert arguments["num_layers"] == 2
    assert "vocab_file" not in arguments
