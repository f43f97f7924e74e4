"""Each package declares what it imports and imports what it declares.

deptry reads the imports. What it does not read is here: extras are imported late, siblings are named in strings and
stubs, extras that are named exist, ranges admit the versions of this checkout and agree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.checks.reporting import report
from tools.workspace import ROOT, Package, is_admitted, read_packages, requirement_name, sibling_floor

MODULES = {"megatron-core": "megatron", "nvidia-ml-py": "pynvml", "pillow": "PIL", "pyyaml": "yaml"}
"""Modules of distributions that are not called like them, and may not be installed here."""
OF_THE_DEVICE = ("habana_frameworks", "torch_xla")
"""Imported, but part of a vendor's software: in no extra."""
BY_NAME = ("bitsandbytes", "boto3", "botocore", "huggingface-hub", "nvidia-ml-py", "sagemaker", "tensorboard",
           "tensorboardX", "timm", "transformers")  # fmt: skip
"""Declared, but imported by a name in a string."""
SIBLING = re.compile(r"""["'](accel_\w+)\.""")
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


def extras_imported_early(package: Package) -> Iterator[str]:
    """Yield imports at the top of a module of what only an extra brings."""
    extras = {
        MODULES.get(name, name.replace("-", "_")) for name in package.extra_names - package.required_names
    }
    for _, file in package.modules():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if name.partition(".")[0] in extras:
                    yield f"{file}:{node.lineno}: `{name}` is of an extra: import it in the function that needs it"


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
    for file in [
        *(file for _, file in package.modules()),
        package.folder / "README.md",
        package.folder / "pyproject.toml",
    ]:
        for name, extras in re.findall(
            r"(?<![\w-])(accel(?:-[a-z]+)?)\[([a-z][\w,-]*)\]", file.read_text(encoding="utf-8")
        ):
            for extra in set(extras.split(",")) - set(siblings[name].extras if name in siblings else ()):
                yield f"{file}: `{name}` has no extra `{extra}`"


def wrong_sibling_ranges(package: Package, siblings: Mapping[str, Package]) -> Iterator[str]:
    """Yield requirements of siblings that are not of the form ``~=0.1.0`` or do not admit the checkout's version."""
    for requirement in [
        *package.dependencies,
        *(each for group in package.extras.values() for each in group),
    ]:
        sibling = siblings.get(requirement_name(requirement))
        try:
            if sibling and not is_admitted(sibling.version, sibling_floor(requirement)):
                yield f"{package.folder}/pyproject.toml: `{requirement}` does not admit {sibling.version}"
        except ValueError as problem:
            yield f"{package.folder}/pyproject.toml: {problem}"


def python_releases(package: Package) -> list[str]:
    """Return the releases of Python that the classifiers of ``package`` name, oldest first."""
    pattern = re.compile(r"Programming Language :: Python :: 3\.(\d+)")
    found = filter(None, map(pattern.fullmatch, package.project.get("classifiers", [])))
    return [f"3.{minor}" for minor in sorted(int(each[1]) for each in found)]


def differing_ranges(packages: Mapping[str, Package], readme: str) -> Iterator[str]:
    """Yield ranges of torch and Python in which packages differ, and those that the README does not say."""
    torch = {
        each
        for package in packages.values()
        for each in package.dependencies
        if requirement_name(each) == "torch"
    }
    python = {
        (package.project.get("requires-python"), *python_releases(package)) for package in packages.values()
    }
    for what, ranges in (("torch", torch), ("Python", python)):
        if len(ranges) > 1:
            yield f"packages/*/pyproject.toml: different requirements of {what}: {sorted(map(str, ranges))}"
    requires, *releases = min(python, key=str)
    if requires != f">={releases[0]}":
        yield f"packages/*/pyproject.toml: `requires-python` is not `>={releases[0]}`, the first classifier"
    said = [f"torch {each.removeprefix('torch>=')} to " for each in torch]
    for range_ in [*said, f"Python {releases[0]} to {releases[-1]}"]:
        if range_ not in readme:
            yield f"README.md: does not say `{range_}`, which the packages declare"


def problems(root: Path) -> list[str]:
    """Return what deptry does not find in the packages of ``root``."""
    packages = read_packages(root)
    found = list(differing_ranges(packages, (root / "README.md").read_text(encoding="utf-8")))
    for package in packages.values():
        for rule in (declared_but_not_named, extras_imported_early, undeclared_siblings):
            found += rule(package)
        found += [*unknown_extras(package, packages), *wrong_sibling_ranges(package, packages)]
    return [line.replace(f"{root}/", "") for line in found]


if __name__ == "__main__":
    found = [line for package in read_packages().values() for line in by_deptry(package)]
    sys.exit(report([*found, *problems(ROOT)]))
