from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from accel_bigmodel import add_timm_hub_prefix, create_empty_model
from accel_state.errors import ConfigError, NotAvailableError, UnreachableError


@pytest.fixture
def timm(monkeypatch):
    """A timm of our own with one model; it notes what it is asked to make."""
    library = ModuleType("timm")
    library.made = []

    def create_model(name, pretrained):
        library.made.append((name, pretrained))
        return nn.Linear(4, 4)

    library.is_model = lambda name: name.partition(".")[0] == "resnet50"
    library.list_models = lambda: ["resnet50"]
    library.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", library)
    return library


@pytest.fixture
def hub(monkeypatch):
    """What the Hub answers, by the name of the model."""
    answers: dict[str, object] = {}

    def verify(repo, token=None):
        answer = answers[repo]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("accel_bigmodel.estimate.models.verify_on_hub", verify)
    return answers


@pytest.mark.parametrize(("name", "library"), [("timm/resnet50.a1_in1k", None), ("resnet50", "timm")])
def test_what_timm_knows_needs_no_network(timm, name, library):
    model = create_empty_model(name, library)
    assert timm.made == [(name.removeprefix("timm/"), False)]
    assert model.weight.is_meta


def test_other_models_of_timm_are_looked_up_on_the_hub(timm, hub):
    hub["timm/newer"] = SimpleNamespace(library_name="timm")
    create_empty_model("timm/newer")
    assert timm.made == [("hf-hub:timm/newer", False)]
    hub["timm/newer"] = "repo"
    with pytest.raises(
        ConfigError, match="There is no model `timm/newer`, neither as a folder here nor on the Hub"
    ):
        create_empty_model("timm/newer")
    with pytest.raises(ConfigError, match="timm has no model `resnet5`.*Did you mean `resnet50`"):
        create_empty_model("resnet5", "timm")
    assert add_timm_hub_prefix("a/b") == "a/b"


def test_a_model_of_timm_under_any_name_needs_no_transformers(timm, hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    hub["someone/resnet50"] = SimpleNamespace(library_name="timm")
    create_empty_model("someone/resnet50")
    assert timm.made == [("hf-hub:someone/resnet50", False)]


@pytest.fixture
def transformers(monkeypatch):
    """A transformers of our own whose cache holds nothing."""
    library = ModuleType("transformers")

    def from_pretrained(name, *, local_files_only, **_):
        raise OSError(f"{name} is not {'in the cache' if local_files_only else 'there'}")

    library.AutoConfig = SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "transformers", library)
    return library


def test_models_that_are_not_to_be_had_are_refused_with_the_reason(transformers, hub, tmp_path):
    hub["a/gone"], hub["a/shut"], hub["a/odd"] = "repo", "gated", SimpleNamespace(library_name="other")
    hub["a/far"] = UnreachableError("The Hub cannot be reached")
    for name, match in {
        "a/gone": "There is no model `a/gone`", "a/shut": "`a/shut` is gated: accept its terms",
        "a/odd": "`a/odd` has no config that transformers can read: a/odd is not there",
        str(tmp_path): "has no config that transformers can read",
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=match):
            create_empty_model(name)
    for name in ("a/gone", "a/shut", "a/far"):
        with pytest.raises(OSError, match="no model|gated|cannot be reached"):
            create_empty_model(name)
    with pytest.raises(UnreachableError, match="The Hub cannot be reached"):
        create_empty_model("a/far")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"model_type": "bert", "hidden_size": 7, "num_attention_heads": 2}, "hidden size"),
        ({"model_type": "bert", "hidden_act": "nothing"}, "nothing"),
        ({"model_type": "bert", "hidden_size": -1, "num_attention_heads": 1}, "negative dimension"),
    ],
)
def test_a_config_from_which_no_model_can_be_made_is_refused(tmp_path, content, reason):
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"has no config that transformers can read: .*{reason}"):
        create_empty_model(str(tmp_path))


def test_a_library_that_is_missing_or_broken_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(NotAvailableError, match=r"`transformers`, which is not installed.*module:factory"):
        create_empty_model(str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    importlib.invalidate_caches()
    with pytest.raises(
        NotAvailableError, match=r"cannot be imported: operator torchvision::nms.*built for this torch"
    ):
        create_empty_model("timm/resnet50")
