"""Build all wheels, or take one that is to be published, install where no source lies, and test what was installed."""

from __future__ import annotations

import argparse

from tools.commands.protocol import Command
from tools.release.build import DIST
from tools.release.places import SIBLINGS
from tools.release.trial import build, built_wheel, try_installed
from tools.setup.presets import wheel_trial
from tools.workspace import read_packages, with_siblings


def wheels(arguments: argparse.Namespace) -> int:
    known = read_packages()
    if arguments.built is None:
        packages = list(known.values())
        built = build([], DIST)
        if arguments.only_build:
            return 0
    else:
        packages = [known[arguments.built]]
        siblings = [each.name for each in with_siblings(known, arguments.built)[:-1]]
        built = [built_wheel(packages[0], DIST)]
        built += build(siblings, SIBLINGS) if siblings else []
    environment = wheel_trial(built, torch=arguments.torch)
    environment.remove()
    results = try_installed(environment.ensure(), packages, arguments.handed_on)
    for name, code in results.items():
        print(f"  {name:<16} {'ok' if code == 0 else f'FAILED (exit {code})'}")
    return max(results.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only-build", action="store_true", help="build into dist/ and stop")
    parser.add_argument(
        "--built",
        metavar="PACKAGE",
        choices=list(read_packages()),
        help="build nothing of it: test the wheel of this package that lies in dist/, as it will be published",
    )
    parser.add_argument(
        "--torch", metavar="RELEASE", help="a release of torch instead of the pinned one, e.g. 2.9"
    )


command = Command(
    help="build all wheels, install them into an empty environment and test them without the sources",
    run=wheels,
    add_arguments=add_arguments,
)
