import pytest

from tools.site.collecting import Message, messages
from tools.site.sources import read_sources
from tools.site.wording import readable
from tools.workspace import read_package

SOURCE = """
import logging, warnings
from accel_state.errors import ConfigError, UnknownNameError
logger = logging.getLogger()
HINT = "Use bf16."

def check(rows, *, num_real):
    if num_real < 0:
        raise ConfigError(f"`num_real` must lie between 0 and {len(rows)}, got {num_real}.")
    raise ConfigError(f"No. {HINT}" if rows else "Nothing is there. Add a row.")

def _unreadable(path, why):
    return ConfigError(f"`{path}` cannot be read: {why}.")

def read(path):
    if path:
        raise _unreadable(path, "it is empty")
    reason = "it ends early"
    raise _unreadable(path, reason)

class Loader:
    def close(self):
        warnings.warn("`{}` stays open.", stacklevel=2)
        warn_user("`rows` has no effect.", FutureWarning)
        logger.warning("%s of %d rows are lost: %s.", self._name, 3, HINT)
        raise UnknownNameError.of("loader", "x", [])

    def fail(self, rows, error, by_lower):
        raise ConfigError(f"{', '.join(map(str, rows))} fail: {error.strerror}. Did you mean `{by_lower[rows[0]]}`?")

def parse(text):
    raise ValueError(f"`{text}` has no end")  # quoted by others
"""


@pytest.fixture
def found(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "package"\n')
    source = tmp_path / "src" / tmp_path.name.replace("-", "_")
    source.mkdir(parents=True)
    (source / "module.py").write_text(SOURCE)
    return list(messages(read_sources(read_package_of(tmp_path)), {"ConfigError", "UnknownNameError"}))


def read_package_of(folder):
    return {"package": read_package(folder)}


def test_what_is_computed_has_a_name(found):
    assert "`num_real` must lie between 0 and <number of rows>, got <number of real>." in texts(found)


def test_a_value_has_the_name_that_the_table_gives_it():
    assert readable("strerror", module="accel_data.prepare") == "error"
    assert readable("number of found", module="accel_data.prepare") == "number of others"
    assert readable("order", module="accel_launch.ray.driver") == "address"
    assert readable("timeout s", module="accel_data.prepare") == "timeout"


def test_names_that_only_the_code_knows_are_replaced(found):
    assert "<rows> fail: <error>. Did you mean `<name>`?" in texts(found)


def test_constants_are_followed_and_choices_are_messages_of_their_own(found):
    assert {"No. Use bf16.", "Nothing is there. Add a row."} <= set(texts(found))


def test_words_that_callers_give_are_part_of_the_message(found):
    assert "`<path>` cannot be read: it is empty." in texts(found)
    assert "`<path>` cannot be read: it ends early." in texts(found)
    assert "`<path>` cannot be read: <why>." not in texts(found)


def test_warnings_count_and_values_of_loggers_are_put_in(found):
    kinds = {message.text: message.kind for message in found}
    assert kinds["`{}` stays open."] == kinds["`rows` has no effect."] == "warning"
    assert kinds["<name> of 3 rows are lost: Use bf16.."] == "warning"


def test_unknown_names_are_told_as_the_class_tells_them(found):
    assert "Unknown loader `<name>`. Known: <names>. Did you mean `<name>`?" in texts(found)


def test_a_built_in_error_that_others_quote_is_left_out(found):
    assert not [text for text in texts(found) if "has no end" in text]


def texts(found):
    assert all(isinstance(each, Message) for each in found)
    return [each.text for each in found]
