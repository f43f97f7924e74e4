import json

import pytest
import torch

from accel_backends.checkpoint_formats.full import FullFormat
from accel_backends.checkpoint_formats.protocol import PreparedOptimizer, SaveChoices
from accel_backends.strategies.deepspeed.checkpoints.checkpoint_format import DeepSpeedFormat
from accel_checkpoint.manifest import saved_files
from accel_state.errors import CheckpointError

FORMAT = DeepSpeedFormat()
STAGE_3 = [
    "latest",
    "pytorch_model/zero_pp_rank_0_mp_rank_00_model_states.pt",
    "pytorch_model_1/zero_pp_rank_0_mp_rank_00_model_states.pt",
    "pytorch_model_1/zero_pp_rank_0_mp_rank_00_optim_states.pt",
]


def test_engines_and_their_optimizers_are_known_by_their_files():
    names = [*STAGE_3, "model_2.safetensors"]
    # The optimizer is that of the second engine: the first has none.
    assert FORMAT.indexes_in(names) == ([0, 1], [0])
    assert FullFormat().indexes_in(names) == ([2], [])


def test_our_own_checkpoints_specify_to_which_engine_an_optimizer_belongs():
    names = [*STAGE_3, "pytorch_model/optimizer_1.json", "pytorch_model_1/optimizer_0.json"]
    assert FORMAT.indexes_in(names)[1] == [0, 1]


def test_without_zero_the_optimizer_is_in_the_file_of_the_model():
    assert FORMAT.indexes_in(["pytorch_model/mp_rank_00_model_states.pt"])[1] == [0]


def test_a_model_without_an_engine_is_saved_in_full():
    files = FORMAT.model_files(
        {"weight": torch.ones(2)}, index=1, choices=SaveChoices(rank=0, is_writer=True)
    )
    assert [file.name for file in files] == ["model_1.safetensors"]


def test_an_optimizer_without_an_engine_is_refused():
    with pytest.raises(CheckpointError, match="in the format `full`"):
        FORMAT.optimizer_files(prepared({}), index=0, choices=SaveChoices(rank=0, is_writer=True))


class FakeStrategy:
    """What the format requires of a strategy for an optimizer whose parameters have these names."""

    def __init__(self, named):
        self._named = named

    def optimizer_tensors(self, optimizer):
        return optimizer.state_dict()

    def optimizer_parameters(self, optimizer, models):
        return [self._named]


def prepared(named):
    return PreparedOptimizer(FakeStrategy(named), torch.optim.AdamW([torch.ones(1)]), [])


@pytest.fixture
def plain_engine(tmp_path):
    """A checkpoint of an engine without ZeRO."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.5)
    weight.grad = torch.ones(2)
    optimizer.step()
    (tmp_path / "pytorch_model").mkdir()
    content = {"module": {"weight": weight.detach()}, "optimizer": optimizer.state_dict(), "global_steps": 1}
    torch.save(content, tmp_path / "pytorch_model" / "mp_rank_00_model_states.pt")
    return tmp_path, optimizer.state_dict()


def test_an_engine_without_zero_loads_into_a_plain_optimizer(plain_engine):
    folder, wanted = plain_engine
    (folder / "pytorch_model" / "optimizer_0.json").write_text(json.dumps({"parameters": [["weight"]]}))
    read = FORMAT.read_optimizer(saved_files(folder), prepared({"weight": torch.empty(2)}), index=0)
    assert torch.equal(read["state"][0]["exp_avg"], wanted["state"][0]["exp_avg"])
    assert read["param_groups"] == wanted["param_groups"]
    saved = FORMAT.open_state(saved_files(folder), index=0)
    assert saved.shapes == {"weight": (2,)}
    assert saved.read({})["weight"].tolist() == wanted_weights()


def wanted_weights():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    torch.optim.AdamW([weight], lr=0.5).step()
    return weight.tolist()


def test_parameters_that_the_optimizer_does_not_step_are_named(plain_engine):
    folder, _ = plain_engine
    with pytest.raises(CheckpointError, match="has 1 parameters, but the optimizer here has 2"):
        FORMAT.read_optimizer(
            saved_files(folder), prepared({"a": torch.empty(2), "b": torch.empty(2)}), index=0
        )
