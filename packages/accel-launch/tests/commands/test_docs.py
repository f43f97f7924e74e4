import webbrowser

import pytest

from accel_launch.commands import docs
from accel_launch.commands.parsing import make_parser
from accel_state.errors import NotAvailableError


@pytest.fixture
def site(tmp_path):
    """A folder like the one that a wheel brings."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").touch()
    return folder


def test_the_installed_copy_is_opened_at_a_search(site):
    address = docs.documentation_address(["gather", "for", "metrics"], site=site)
    assert address == f"{(site / 'index.html').as_uri()}?q=gather+for+metrics"


def test_without_words_it_is_the_front_page(site):
    assert docs.documentation_address([], site=site) == (site / "index.html").as_uri()


def test_without_a_copy_it_is_said_how_to_get_one(tmp_path):
    with pytest.raises(NotAvailableError, match="`python tools/dev.py docs --install` builds it"):
        docs.documentation_address([], site=tmp_path)


@pytest.mark.parametrize("is_printed", [True, False])
def test_the_address_is_printed_and_opened_unless_only_asked_for(site, monkeypatch, capsys, is_printed):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(docs, "documentation_address", lambda words: f"file:///docs?{words}")
    parser = make_parser("accel docs", docs.command)
    assert docs.command.run(parser.parse_args(["data", *["--print"] * is_printed])) == 0
    assert capsys.readouterr().out == "file:///docs?['data']\n"
    assert opened == ([] if is_printed else ["file:///docs?['data']"])
