import errno

import pytest

from tools import front_door
from tools.commands.protocol import Command
from tools.setup.running import SetupError


def raising(error):
    def run(arguments):
        raise error

    return run


@pytest.fixture
def command(monkeypatch):
    """Return a function that makes every command do the given thing."""

    def use(run):
        monkeypatch.setattr(front_door, "load_command", lambda name: Command(help=name, run=run))

    return use


def test_what_follows_the_dashes_is_handed_on(command):
    seen = []
    command(lambda arguments: seen.append(arguments.handed_on) or 3)
    assert front_door.main(["test", "--", "-k", "gather", "--", "x"]) == 3
    assert seen == [["-k", "gather", "--", "x"]]


def test_what_a_person_can_put_right_is_one_line(command, capsys):
    command(raising(SetupError("no way")))
    assert front_door.main(["demo"]) == 1
    assert capsys.readouterr().err == "error: no way\n"


def test_an_error_of_our_own_is_not_hidden(command):
    command(raising(OSError(errno.EACCES, "denied")))
    with pytest.raises(PermissionError):
        front_door.main(["demo"])
