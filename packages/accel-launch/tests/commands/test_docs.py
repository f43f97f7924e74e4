import webbrowser
from functools import partial

import pytest

from accel_launch.cli import make_parser
from accel_launch.commands import docs
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


@pytest.fixture
def run_without_a_copy(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command as one installed from wheels that bring no site."""

    def run(*words):
        monkeypatch.setattr(docs, "documentation_address", partial(docs.documentation_address, site=tmp_path))
        assert docs.command.run(make_parser("accel docs", docs.command).parse_args(words)) == 0
        return capsys.readouterr()

    return run


def test_without_a_copy_it_shows_the_readme_and_how_to_get_one(run_without_a_copy):
    printed = run_without_a_copy()
    assert printed.out.startswith("# accel\n")
    assert "`python tools/dev.py docs --install` builds it" in printed.err


def test_without_a_copy_a_search_shows_sections_of_readmes(run_without_a_copy):
    printed = run_without_a_copy("log_images", "tracker").out
    assert printed.startswith("accel-trackers: ")
    assert "accel-data: " not in printed


def test_without_a_copy_words_that_no_readme_has_are_an_error(run_without_a_copy):
    with pytest.raises(
        NotAvailableError, match="contains `zebra`.*`python tools/dev.py docs --install` builds it"
    ):
        run_without_a_copy("zebra")


@pytest.mark.parametrize("is_printed", [True, False])
def test_the_address_is_printed_and_opened_unless_only_requested(site, monkeypatch, capsys, is_printed):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(docs, "documentation_address", lambda words: f"file:///docs?{words}")
    parser = make_parser("accel docs", docs.command)
    assert docs.command.run(parser.parse_args(["data", *["--print"] * is_printed])) == 0
    assert capsys.readouterr().out == "file:///docs?['data']\n"
    assert opened == ([] if is_printed else ["file:///docs?['data']"])
