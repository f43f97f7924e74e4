import pytest

from tools.site.collecting import Message
from tools.site.messages import Entry, entries, message_pages, reasons, remedies, what_to_do, why
from tools.site.wording import PLACEHOLDER, names_of_values


@pytest.fixture
def found(errors):
    return errors[1]


@pytest.fixture
def all_entries(found):
    return [entry for listed in entries(found).values() for entry in listed]


def test_every_message_says_what_to_do_or_the_table_does(all_entries):
    """End a message with what to do about it; where it cannot know that, add a line to ``remedies.toml``."""
    assert len(all_entries) > 900
    curated = remedies()
    assert not [(entry.modules[0], entry.text) for entry in all_entries if not what_to_do(entry, curated)]


def test_every_line_of_the_table_is_needed(all_entries):
    silent = [entry.text for entry in all_entries if not entry.remedy]
    assert not [words for words in remedies() if not any(words in text for text in silent)]


def test_every_name_of_a_value_is_in_a_message(all_entries):
    used = {name[1:-1] for entry in all_entries for name in PLACEHOLDER.findall(entry.text)}
    used |= {name.rpartition(" of ")[2] for name in used}
    tables = [{}, *(value for value in names_of_values().values() if isinstance(value, dict))]
    tables[0].update((key, value) for key, value in names_of_values().items() if isinstance(value, str))
    assert not [(key, name) for table in tables for key, name in table.items() if name not in used]


def test_all_words_in_the_table_of_reasons_are_needed(all_entries):
    """A message may have the words of several reasons; each is then needed by another message."""
    known = reasons()
    used = {next((words for words in known if words in entry.text), "") for entry in all_entries}
    assert not known.keys() - used


def test_the_reason_of_a_group_is_for_each_of_its_messages():
    known = {"in 8 bits": "It is slow.", "no effect": "It would be ignored."}
    assert why(Entry("`a` has no effect. Leave it out."), known) == "It would be ignored."
    assert why(Entry("`b` has no effect in 8 bits."), known) == "It is slow."
    assert why(Entry("`c` must be at least 1."), known) == ""


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("`a` is <a>. Pass `b.c`. Or `c`.", "`a` is <a>.", "Pass `b.c`. Or `c`."),
        ("`a` must be at least 1, got <a>.", "`a` must be at least 1, got <a>.", "`a` must be at least 1."),
        ("Unknown `<name>`. Known: <names>.", "Unknown `<name>`.", "Known: <names>."),
        (
            "`a` and `b` go together: give both.",
            "`a` and `b` go together: give both.",
            "`a` and `b` go together: give both.",
        ),
        ("It failed: <error>", "It failed: <error>", ""),
    ],
)
def test_the_way_out_is_told_from_the_problem(text, problem, remedy):
    entry = Entry(text)
    assert entry.remedy == remedy
    assert entry.problem in (problem, text)


def test_a_message_of_several_places_is_one_entry():
    twice = [Message("Add `a`.", kind, "accel_ops.nested.rows") for kind in ("ConfigError", "StateError")]
    ((subject, (entry,)),) = entries(twice).items()
    assert subject == ("accel_ops", "nested")
    assert entry.kinds == ["ConfigError", "StateError"]
    assert entry.modules == ["accel_ops.nested.rows"]


def test_a_page_for_each_package_shows_message_reason_and_way_out(found):
    pages = dict(message_pages(found))
    assert pages.keys() >= {"reference/messages/index.md", "reference/messages/accel-data.md"}
    page = pages["reference/messages/accel-launch.md"]
    assert "## Notebook\n" in page
    assert (
        "##### `use_port` is 0, a free one, but several machines must agree on it. "
        "{ #notebook-use-port-is-0-a-free-one-but-several }\n\n"
        "**Why.** Each machine would choose another free port, and the ranks would never meet.\n\n"
        "**What to do.** Give a number.\n\n"
        "*`ConfigError`* from `accel_launch.notebook.launching`.\n" in page
    )


def test_anchors_of_a_page_are_unique(found):
    for page in dict(message_pages(found)).values():
        anchors = [line.rpartition("{ #")[2] for line in page.splitlines() if line.startswith("##### ")]
        assert len(anchors) == len(set(anchors))
