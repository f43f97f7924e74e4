"""No text of the checkout installs a package of accel by its name, which on an index may be another project's.

What the launcher generates is tested in accel-launch: `commands/test_tpu_config.py`, `sagemaker/test_job.py`.
"""

import re
import subprocess
from pathlib import Path

import pytest

from accel_launch.installation import PACKAGES
from tools.workspace import ROOT, read_packages, requirement_name

PROJECTS = read_packages()

NAME = re.compile(
    rf"(?:{'|'.join(PACKAGES)})(?:\[[\w,-]*\])?(?:[=<>~!]=?[\w.*]+)?[`'\"\\.,;:)]*(?=\s|$)", re.IGNORECASE
)
COMMAND = re.compile(r"\bpip3?[\"',\s]+(?:install|download|wheel)\b(?P<words>(?:[^\n]*\\\n)*[^\n]*)")
QUOTED = re.compile(r"`[^`]*`")


def from_an_index(text):
    """Yield the packages of accel that the commands of pip in a text take from an index: by name, or for another."""
    for found in COMMAND.finditer(text):
        words = found["words"].replace("\\\n", " ")
        if text[: found.start()].endswith("`") and "`" in words:  # a command within a sentence
            words = words.partition("`")[0]
        words = re.split(r"\s#\s", words)[0]
        yield from (word for word in re.split(r"[\s\"']+", words) if NAME.fullmatch(word.strip("`(),")))
        by_path = set(re.findall(r"(?<!subdirectory=)packages/(accel[\w-]*)", words))
        needed = {requirement_name(one) for name in by_path for one in PROJECTS[name].dependencies}
        yield from sorted(needed & PROJECTS.keys() - by_path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Run `pip install accel-trackers[wandb]`.", ["accel-trackers[wandb]"]),
        ("pip3 install -U accel==0.2.0", ["accel==0.2.0"]),
        ("pip download --no-deps accel-data", ["accel-data"]),
        ("pip install --find-links dist \\\n    accel", ["accel"]),
        ('["-m", "pip", "install", "accel-launch"]', ["accel-launch"]),
        ("pip install packages/accel-state './packages/accel-trackers[wandb]' dist/*.whl", []),
        ("Run `pip install 'packages/accel-data[torchdata]'`.", ["accel-ops", "accel-state"]),
        ("pip install git+https://HOST/accel.git#subdirectory=packages/accel", []),
        ("Run `pip install wandb` beside accel.", []),
        ("pip install accelerate", []),
    ],
)
def test_a_name_is_distinguished_from_a_path(text, names):
    assert list(from_an_index(text)) == names


def test_no_text_installs_accel_by_name():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = [Path(name) for name in listed.stdout.splitlines() if "tests" not in Path(name).parts]
    suffixes = {".py", ".md", ".toml", ".yml", ".yaml", ".ipynb", ".html", ".sh", ".cfg", ".txt", ""}
    found = {}
    for name in texts:
        if name.suffix in suffixes and name.name != Path(__file__).name and (ROOT / name).is_file():
            if names := list(from_an_index((ROOT / name).read_text(encoding="utf-8"))):
                found[str(name)] = names
    assert found == {}


def test_the_launcher_knows_all_packages():
    assert sorted(PACKAGES) == sorted(read_packages())
