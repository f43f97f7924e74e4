import pytest

from tools.checks import client_table
from tools.checks.client_table import BEGIN, PAGE, Row
from tools.workspace import ROOT

TESTS = """
import pytest

@pytest.mark.client("peft", "merges")
def test_it_merges():
    pass
"""
MERGES = Row("peft 0.19.1", "merges", "equal", "integration-tests/test_peft.py::test_it_merges")


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with one test of a client, and an empty table."""
    for file, text in ((PAGE, f"# Programs\n\n{BEGIN}\nMore.\n"), ("integration-tests/test_peft.py", TESTS)):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def update(checkout):
    page = checkout / PAGE
    page.write_text(client_table.with_records(page.read_text(), checkout))


def test_every_client_has_a_row():
    assert client_table.problems(ROOT) == []


def test_what_a_run_shows_gets_on_the_page(checkout):
    assert "`integration-tests/test_peft.py::test_it_merges` has no row" in client_table.problems(checkout)[0]
    assert "has no row `| peft 0.19.1 | merges | equal |" in client_table.record([MERGES], checkout)[0]
    update(checkout)
    assert client_table.rows_of((checkout / PAGE).read_text()) == {MERGES.test: MERGES}
    assert (
        (checkout / PAGE)
        .read_text()
        .endswith("`integration-tests/test_peft.py::test_it_merges` |\n\nMore.\n")
    )
    assert client_table.record([MERGES], checkout) == client_table.problems(checkout) == []


def test_a_row_with_another_result_is_old_and_one_with_another_release_is_not(checkout):
    client_table.record([MERGES], checkout)
    update(checkout)
    assert client_table.record([Row("peft 0.19.2", "merges", "equal", MERGES.test)], checkout) == []
    newer = Row("peft 0.20.0", "merges", "rounds in another order", MERGES.test)
    assert "`| peft 0.20.0 | merges | rounds in another order |" in client_table.record([newer], checkout)[0]
    update(checkout)
    assert client_table.rows_of((checkout / PAGE).read_text()) == {MERGES.test: newer}


def test_a_row_goes_with_its_test(checkout):
    client_table.record([MERGES], checkout)
    update(checkout)
    (checkout / "integration-tests" / "test_peft.py").write_text(
        TESTS.replace("@pytest.mark.client", "@other")
    )
    assert "test_it_merges` is no test marked `client`" in client_table.problems(checkout)[0]
    update(checkout)
    assert client_table.problems(checkout) == []
