from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from accel_bigmodel import check_has_model, verify_on_hub
from accel_state.errors import NotAvailableError, UnreachableError


class HTTPError(Exception):
    """What the HTTP library of the Hub's client raises."""


@pytest.fixture
def hub(monkeypatch):
    """A Hub of our own, with the same names; its `answer` is returned or raised."""
    errors = ModuleType("huggingface_hub.errors")
    errors.HfHubHTTPError = type("HfHubHTTPError", (HTTPError, OSError), {})
    errors.RepositoryNotFoundError = type("RepositoryNotFoundError", (errors.HfHubHTTPError,), {})
    errors.GatedRepoError = type("GatedRepoError", (errors.RepositoryNotFoundError,), {})
    errors.HFValidationError = type("HFValidationError", (ValueError,), {})
    found = ModuleType("huggingface_hub")
    found.errors, found.answer = errors, None

    def model_info(repo, token=None):
        if isinstance(found.answer, Exception):
            raise found.answer
        return SimpleNamespace(id=repo, token=token, library_name=found.answer)

    found.model_info = model_info
    monkeypatch.setitem(sys.modules, "huggingface_hub", found)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return found


def test_what_is_on_the_hub_is_told(hub):
    hub.answer = "transformers"
    assert vars(verify_on_hub("a/b", token="t")) == {
        "id": "a/b",
        "token": "t",
        "library_name": "transformers",
    }
    hub.answer = hub.errors.RepositoryNotFoundError()
    assert verify_on_hub("a/b") == "repo"
    hub.answer = hub.errors.HFValidationError()
    assert verify_on_hub("a b") == "repo"
    hub.answer = hub.errors.GatedRepoError()
    assert verify_on_hub("a/b") == "gated"


@pytest.mark.parametrize("kind", [HTTPError, ConnectionError])
def test_a_hub_that_cannot_be_reached_is_an_error_with_the_way_out(hub, kind):
    hub.answer = kind("no such host")
    with pytest.raises(
        UnreachableError, match="cannot be reached to look up `a/b`: no such host.*module:factory"
    ):
        verify_on_hub("a/b")


def test_without_its_client_the_way_out_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NotAvailableError, match="pip install huggingface_hub"):
        verify_on_hub("a/b")


def test_the_library_without_a_model_is_known_by_its_words():
    assert check_has_model(RuntimeError("Unknown model (nope)")) == "timm"
    assert check_has_model(OSError("x does not appear to have a file named config.json")) == "transformers"
    assert check_has_model(ValueError("Unknown model (nope)")) == "unknown"
    assert check_has_model(OSError()) == "unknown"
