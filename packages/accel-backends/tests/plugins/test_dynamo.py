from __future__ import annotations

import pytest

from accel_backends import TorchDynamoPlugin
from accel_state.enums import DynamoBackend
from accel_state.errors import ConfigError


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("BACKEND", "MODE", "USE_DYNAMIC", "USE_FULLGRAPH", "USE_REGIONAL_COMPILATION"):
        monkeypatch.delenv(f"ACCELERATE_DYNAMO_{name}", raising=False)


def test_without_variables_nothing_is_compiled():
    plugin = TorchDynamoPlugin()
    assert plugin.backend is DynamoBackend.NO
    assert (plugin.mode, plugin.fullgraph, plugin.dynamic) == ("default", False, None)
    assert plugin.use_regional_compilation is False


def test_variables_fill_what_is_not_given(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "reduce-overhead")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "true")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_FULLGRAPH", "1")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "yes")
    plugin = TorchDynamoPlugin()
    assert (plugin.backend, plugin.mode) == ("INDUCTOR", "reduce-overhead")
    assert (plugin.dynamic, plugin.fullgraph, plugin.use_regional_compilation) == (True, True, True)
    given = TorchDynamoPlugin("eager", mode="default", dynamic=False, fullgraph=False)
    assert (given.backend, given.mode, given.dynamic, given.fullgraph) == ("EAGER", "default", False, False)


def test_kwargs_are_what_differs_from_the_defaults_of_torch_compile():
    plugin = TorchDynamoPlugin(backend="AOT_EAGER", dynamic=True, use_regional_compilation=True)
    assert plugin.to_kwargs() == {"backend": "aot_eager", "dynamic": True}
    assert plugin.to_dict()["use_regional_compilation"] is True


def test_kwargs_have_what_variables_specify(monkeypatch):
    assert TorchDynamoPlugin().to_kwargs() == {}
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "reduce-overhead")
    assert TorchDynamoPlugin().to_kwargs() == {"backend": "inductor", "mode": "reduce-overhead"}


def test_options_leave_the_mode_to_torch():
    plugin = TorchDynamoPlugin(backend="inductor", options={"max_autotune": True})
    assert plugin.mode is None
    assert plugin.to_kwargs()["options"] == {"max_autotune": True}
    assert "mode" not in plugin.to_kwargs()


def test_mode_and_options_together_are_refused():
    with pytest.raises(ConfigError, match="`mode` and `options` cannot both be given"):
        TorchDynamoPlugin(backend="inductor", mode="default", options={"max_autotune": True})


def test_an_unknown_backend_is_refused():
    with pytest.raises(ConfigError, match="`INDUCTER` is not a valid DynamoBackend"):
        TorchDynamoPlugin(backend="inducter")
