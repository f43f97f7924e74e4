"""Twenty shapes of modules: offloaded, they give what the resident model gives, bit for bit, or are refused."""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from accel_bigmodel import (
    align_module_device,
    cpu_offload,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    remove_hook_from_submodules,
    save_model,
)
from accel_state.errors import StateError

pytestmark = pytest.mark.usefixtures("execution_memory")

WIDTH = 8


class RawWeightOfChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.linear(x, self.lin.weight, self.lin.bias)


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.lin(x) * self.scale


class ParentReadsGrandchild(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = OwnParameter()

    def forward(self, x):
        return self.inner(x) + self.inner.scale + self.inner.lin.weight.sum()


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(WIDTH, WIDTH)) for _ in range(3)])
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.rand(WIDTH))})

    def forward(self, x):
        for weight in self.weights:
            x = x @ weight
        return x + self.named["bias"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x)) @ self.first.weight.T


class SharedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = OwnParameter()
        self.again = self.block

    def forward(self, x):
        return self.again(self.block(self.block(x)))


class OtherMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = OwnParameter()
        self.embed.project = functools.partial(OwnParameter.forward, self.embed)

    def forward(self, x):
        return self.embed.project(x)


class Slices(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x):
        left, right = self.lin.weight.chunk(2)
        return F.linear(x, left) * F.linear(x, right, self.lin.bias[WIDTH:]) + self.lin.weight[0, 0]


class Data(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x @ self.lin.weight.data.t() + torch.stack([self.lin.bias, self.lin.bias.detach()]).sum(0)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x[:, None])[0])[0][:, 0]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        x = x[None]
        return self.attention(x, x, x)[0][0]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        padding = torch.zeros(1, len(x), dtype=torch.bool)
        padding[0, -1] = True
        found = self.encoder(x[None], src_key_padding_mask=padding)[0]
        return F.pad(found, (0, 0, 0, len(x) - len(found)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True), 2)

    def forward(self, x):
        return self.decoder(x[None], x[None])[0]


class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.lin(x)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Conv1d(3, 1, 1)

    def forward(self, x):
        return self.out(self.norm(self.conv(x[:, None])))[:, 0]


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(WIDTH, WIDTH))
        self.register_buffer("hidden", torch.rand(WIDTH), persistent=False)
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.lin(x @ self.table) + self.hidden


class Branches(nn.Module):
    """Takes its blocks in an order that depends on the input."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        order = torch.argsort(x[0, :4]).tolist()
        for number in order:
            x = torch.tanh(self.blocks[number](x))
        return x


class Nested(nn.Module):
    """Dictionaries and keyword arguments between modules."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(WIDTH, WIDTH)

        def forward(self, *, parts):
            return {"out": [self.lin(parts["x"])]}

    def __init__(self):
        super().__init__()
        self.inner = Nested.Inner()

    def forward(self, x):
        return self.inner(parts={"x": x})["out"][0]


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, WIDTH)
        self.bag = nn.EmbeddingBag(16, WIDTH)

    def forward(self, x):
        codes = (x.abs() * 5).long() % 16
        return self.bag(codes) + self.embed(codes[:, 0]) @ self.embed.weight.T @ self.embed.weight


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH))

    def forward(self, x, depth=3):
        return x if depth == 0 else torch.tanh(self(x, depth=depth - 1) @ self.weight)


SHAPES = [
    RawWeightOfChild, OwnParameter, ParentReadsGrandchild, Lists, Tied, SharedModule, OtherMethod, Slices, Data,
    Recurrent, Attention, Encoder, Decoder, Parametrized, Convolution, Buffers, Branches, Nested, Bag, Recursive,
]  # fmt: skip
MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def resident(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def offloaded(model: nn.Module, way: str, folder) -> nn.Module:
    if way == "cpu":
        return cpu_offload(model, "cpu", offload_buffers=True)
    if way == "disk":
        return disk_offload(model, folder / "offload", "cpu", offload_buffers=True)
    return dispatch_model(model, {"": "disk"}, offload_dir=folder / "offload")


@pytest.fixture
def unfused():
    """Torch's attention without its fused kernels, which it does not use for offloaded weights."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.usefixtures("unfused")
@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
@pytest.mark.parametrize("way", ["cpu", "disk", "dispatch"])
@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_an_offloaded_model_gives_what_the_resident_one_gives(tmp_path, kind, way):
    model = resident(kind)
    moved = offloaded(copy.deepcopy(model), way, tmp_path)
    copied = copy.deepcopy(moved)
    assert any(parameter.is_meta for parameter in moved.parameters())
    for name, mode in MODES.items():
        if kind is Recurrent and name == "autocast":
            continue  # torch cannot run its LSTM so on every processor, resident or not
        for round_ in range(3):  # the third round runs in the order learned by then
            x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(round_))
            with mode(), torch.no_grad():
                wanted = model(x)
                assert torch.equal(moved(x), wanted)
                assert torch.equal(copied(x), wanted)
    assert all(torch.equal(moved.state_dict()[name], value) for name, value in model.state_dict().items())
    remove_hook_from_submodules(moved)
    with torch.no_grad():
        assert torch.equal(moved(x), model(x))
    assert not any(parameter.is_meta for parameter in moved.parameters())


@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize(
    "kind", [Tied, SharedModule, Recurrent, Encoder, Parametrized, Convolution], ids=lambda k: k.__name__
)
def test_so_does_a_skeleton_that_runs_from_files_of_safetensors(tmp_path, kind):
    model = resident(kind)
    safetensors.torch.save_model(model, tmp_path / "model.safetensors")
    with init_empty_weights():
        skeleton = kind().eval()
    load_checkpoint_and_dispatch(skeleton, tmp_path, device_map={"": "disk"})
    x = torch.randn(4, WIDTH)
    with torch.no_grad():
        found, wanted = skeleton(x), model(x)
    # Kernels may sum in another order where weights are not aligned: a few roundings of numbers of this size.
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
@pytest.mark.parametrize("way", ["cpu", "disk"])
def test_fused_attention_runs_where_the_weights_of_the_encoder_are_loaded_together(tmp_path, way):
    model, x = resident(Encoder), torch.randn(4, WIDTH)
    moved, whole = copy.deepcopy(model), ["TransformerEncoder"]
    if way == "cpu":
        cpu_offload(moved, "cpu", preload_module_classes=whole)
    else:
        disk_offload(moved, tmp_path, "cpu", preload_module_classes=whole)
    with torch.no_grad():
        wanted = model(x)
        assert torch.equal(moved(x), wanted)
        torch.backends.mha.set_fastpath_enabled(False)
        assert not torch.equal(model(x), wanted)  # it shows: outputs at padding are zero
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_generation_loop_gives_the_same_tokens(tmp_path):
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, WIDTH)
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = x + torch.tanh(block(x)).cumsum(0)
            return x @ self.embed.weight.T

        @torch.inference_mode()
        def generate(self, tokens, count):
            for _ in range(count):
                tokens = torch.cat([tokens, self(tokens)[-1:].argmax(-1)])
            return tokens

    model = resident(Language)
    moved = disk_offload(copy.deepcopy(model), tmp_path, "cpu")
    start = torch.tensor([3, 1])
    assert torch.equal(moved.generate(start, 20), model.generate(start, 20))


def test_a_replaced_submodule_or_weight_is_used_as_it_is(tmp_path):
    model = disk_offload(resident(ParentReadsGrandchild), tmp_path, "cpu")
    fresh = nn.Linear(WIDTH, WIDTH)
    model.inner.lin = fresh
    model.inner.scale = nn.Parameter(torch.ones(WIDTH))
    x = torch.randn(4, WIDTH)
    with torch.no_grad():
        assert torch.equal(model(x), fresh(x) * 1 + 1 + fresh.weight.sum())
        assert torch.equal(model(x), fresh(x) * 1 + 1 + fresh.weight.sum())


@pytest.mark.parametrize("way", ["cpu", "disk", "dispatch"])
def test_a_state_dict_is_loaded_into_offloaded_weights_without_a_word_of_doubt(tmp_path, way):
    model = offloaded(resident(Buffers), way, tmp_path)
    copied = copy.deepcopy(model)
    torch.manual_seed(1)
    wanted = Buffers().eval()
    x = torch.randn(4, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch says of weights on the meta device that nothing is copied
        for each in (model, copied):
            each.hidden = wanted.hidden  # not in the state dict
            each.load_state_dict(wanted.state_dict())
    for each in (model, copied):
        assert all(parameter.is_meta for parameter in each.parameters())
        with torch.no_grad():
            assert torch.equal(each(x), wanted(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({**wanted.state_dict(), "lin.bias": torch.zeros(1)})
    model.load_state_dict(Buffers().state_dict(), assign=True)
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_what_is_written_to_weights_stays_written(tmp_path):
    model = disk_offload(resident(Convolution), tmp_path, "cpu", offload_buffers=True)
    wanted = resident(Convolution)
    x = torch.randn(4, WIDTH)
    for each in (model, wanted):
        with torch.no_grad():
            with align_module_device(each.conv):
                each.conv.weight.mul_(2)
            each.out.bias.data = torch.ones(1)
            each.norm.load_state_dict({**each.norm.state_dict(), "weight": torch.full((3,), 3.0)})
            each.train()(x)  # moves the running statistics
    statistics = model.norm.state_dict()
    assert torch.equal(statistics["running_mean"], wanted.norm.running_mean)
    assert wanted.norm.num_batches_tracked == 1 == statistics["num_batches_tracked"]
    with torch.no_grad():
        assert torch.equal(model.eval()(x), wanted.eval()(x))


def test_a_gradient_that_would_be_lost_is_refused():
    model = cpu_offload(resident(OwnParameter), "cpu")
    x = torch.randn(4, WIDTH, requires_grad=True)
    with pytest.raises(StateError, match="gradient of `.*` would be lost"):
        model(x).sum().backward()
    model.requires_grad_(False)
    model(x).sum().backward()
    wanted = resident(OwnParameter)
    twin = x.detach().requires_grad_()
    wanted(twin).sum().backward()
    assert torch.equal(x.grad, twin.grad)


def test_a_forward_that_fails_leaves_nothing_behind():
    model = cpu_offload(resident(OwnParameter), "cpu")
    with pytest.raises(RuntimeError, match="shapes|mat1"):
        model(torch.zeros(4, WIDTH + 1))
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:.*deprecated.*:DeprecationWarning")
def test_a_scripted_module_is_refused_by_the_name_of_its_parameter(tmp_path):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.fused = torch.jit.trace(nn.Linear(WIDTH, WIDTH), torch.zeros(1, WIDTH))

    with pytest.raises(StateError, match=r"`fused\.weight` belongs to a scripted module"):
        cpu_offload(Around(), "cpu")


def test_the_address_of_an_absent_weight_is_refused(tmp_path):
    model = cpu_offload(resident(OwnParameter), "cpu")
    with pytest.raises(StateError, match=r"address of `lin\.weight`.*preload_module_classes"):
        model.lin.weight.data_ptr()


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.alias = {"weight": [self.lin.weight]}
        self.pair = (self.lin.bias, 3)

    def forward(self, x):
        return F.linear(self.lin(x), self.alias["weight"][0], self.pair[0])


@pytest.mark.parametrize("device_map", [{"": "disk"}, {"": "cpu"}, None])
def test_weights_that_a_skeleton_also_keeps_in_plain_attributes_are_refused(tmp_path, device_map):
    save_model(resident(Hidden), tmp_path)
    with init_empty_weights():
        skeleton = Hidden()
    with pytest.raises(StateError, match=r"`(alias|pair)` of `Hidden` keeps a weight of the skeleton"):
        load_checkpoint_and_dispatch(skeleton, tmp_path, device_map=device_map)


def test_a_folder_of_weights_does_not_serve_a_skeleton_that_keeps_them_in_plain_attributes(tmp_path):
    disk_offload(resident(OwnParameter), tmp_path, "cpu")
    with init_empty_weights():
        skeleton = OwnParameter()
    skeleton.lin.kept = [skeleton.scale]
    with pytest.raises(StateError, match=r"`lin\.kept` of `Linear` keeps a weight of the skeleton"):
        disk_offload(skeleton, tmp_path, "cpu")


@pytest.mark.parametrize("way", ["cpu", "disk", "dispatch"])
def test_weights_that_a_model_also_keeps_in_plain_attributes_have_values(tmp_path, way):
    model, x = resident(Hidden), torch.randn(4, WIDTH)
    with torch.no_grad():
        wanted = model(x)
        assert torch.equal(offloaded(model, way, tmp_path)(x), wanted)


class Forgotten(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.closure = functools.partial(torch.add, torch.empty(WIDTH, device="meta"))

    def forward(self, x):
        return self.closure(self.closure(self.lin.weight.to("meta")))


def test_an_output_without_values_is_refused():
    model = cpu_offload(Forgotten(), "cpu")
    with pytest.raises(StateError, match="`Forgotten` returned a tensor without values"), torch.no_grad():
        model(torch.zeros(1, WIDTH))
