"""Each package declares what it imports and imports what it declares.

deptry reads the imports. What it does not read is here: distributions and siblings are named in strings and stubs, and
extras that are named exist. ruff finds extras that are imported early, uv ranges of siblings that admit no other.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.workspace import ROOT, Package, read_packages, requirement_name

MODULES = {"megatron-core": "megatron", "nvidia-ml-py": "pynvml", "pillow": "PIL", "pyyaml": "yaml"}
"""Modules of distributions that are not called like them, and may not be installed here."""
OF_THE_DEVICE = ("habana_frameworks", "torch_xla")
"""Imported, but part of a vendor's software: in no extra."""
BY_NAME = ("bitsandbytes", "boto3", "botocore", "huggingface-hub", "nvidia-ml-py", "sagemaker", "tensorboard",
           "tensorboardX", "timm", "transformers")  # fmt: skip
"""Declared, but imported by a name in a string."""
SIBLING = re.compile(r"""["'](accel_\w+)\.""")
MENTION = re.compile(r"(?<![\w-])(accel(?:-[a-z]+)?)\[([a-z][\w,-]*)\]")
SIBLING_OF_STUB = re.compile(r"^(?:from|import) (accel\w*)", re.MULTILINE)


def by_deptry(package: Package) -> Iterator[str]:
    """Yield what deptry finds."""
    ignored = {"DEP001": [*OF_THE_DEVICE, *(MODULES.get(name, name) for name in BY_NAME)], "DEP002": BY_NAME}
    words = [
        *(sys.executable, "-m", "deptry", "src", "--no-ansi", "--package-module-name-map"),
        ",".join(f"{name}={module}" for name, module in MODULES.items()),
        *("--per-rule-ignores", ",".join(f"{rule}={'|'.join(names)}" for rule, names in ignored.items())),
    ]
    done = subprocess.run(words, cwd=package.folder, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "DEP" in line]
    if done.returncode != 0:
        yield from (f"{package.folder}/{line}" for line in lines or [done.stderr])


def declared_but_not_named(package: Package) -> Iterator[str]:
    """Yield distributions of `BY_NAME` that no string names."""
    text = "".join(file.read_text(encoding="utf-8") for _, file in package.modules())
    for name in {requirement_name(each) for each in BY_NAME} & package.extra_names:
        module = MODULES.get(name, name.replace("-", "_"))
        if not re.search(rf"""(["']|(from|import) ){module}\b""", text, re.IGNORECASE):
            yield f"{package.folder}/pyproject.toml: `{name}` is declared, nothing imports it"


def undeclared_siblings(package: Package) -> Iterator[str]:
    """Yield names of siblings in strings and stubs that the package does not declare."""
    declared = {
        package.import_name,
        *(name.replace("-", "_") for name in package.required_names | package.extra_names),
    }
    for files, pattern in ((package.modules(), SIBLING), (package.stubs(), SIBLING_OF_STUB)):
        for _, file in files:
            for name in set(pattern.findall(file.read_text(encoding="utf-8"))) - declared:
                yield f"{file}: names `{name}`, which the package does not declare"


def unknown_extras(package: Package, siblings: Mapping[str, Package]) -> Iterator[str]:
    """Yield mentions of extras that do not exist, in sources, README and ``pyproject.toml``."""
    files = [file for _, file in package.modules()]
    for file in [*files, package.folder / "README.md", package.folder / "pyproject.toml"]:
        for name, extras in MENTION.findall(file.read_text(encoding="utf-8")):
            for extra in set(extras.split(",")) - set(siblings[name].extras if name in siblings else ()):
                yield f"{file}: `{name}` has no extra `{extra}`"


def problems(root: Path) -> list[str]:
    """Return what deptry does not find in the packages of ``root``."""
    packages, found = read_packages(root), list[str]()
    for package in packages.values():
        found += [*declared_but_not_named(package), *undeclared_siblings(package)]
        found += unknown_extras(package, packages)
    return [line.replace(f"{root}/", "") for line in found]


if __name__ == "__main__":
    found = [line for package in read_packages().values() for line in by_deptry(package)]
    sys.exit("\n".join([*found, *problems(ROOT)]) or 0)
