"""A package imports exactly its declared dependencies.

- A module-level import needs a required dependency (or from an extra, in the modules that belong to it).
- An import inside a function, or guarded by ``except ImportError``, may also need an extra.
- Every declared dependency, in extras too, is used somewhere.
- An extra of ours that is named anywhere, such as ``accel-trackers[wandb]``, exists.
- The range of a sibling names three parts and admits the version of this checkout.
- The packages agree on the releases of torch and of Python that they run on, also with the README.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.checks.imports import Import, Kind, imports_of
from tools.checks.reporting import report
from tools.workspace import (
    ROOT,
    Package,
    is_admitted,
    owner_of,
    read_packages,
    requirement_name,
    sibling_floor,
)

DISTRIBUTION_OF = {
    "megatron": "megatron-core",
    "IPython": "ipython",
    "PIL": "pillow",
    "comet_ml": "comet-ml",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Import names that are not simply the distribution's name."""

OF_THE_DEVICE = {
    "habana_frameworks",
    "intel_extension_for_pytorch",
    "oneccl_bindings_for_pytorch",
    "torch_mlu",
    "torch_musa",
    "torch_npu",
    "torch_sdaa",
    "torch_xla",
    "transformer_engine",
}
"""Part of a vendor's software, or built for its device: in no extra. Imported inside functions only."""

DECLARED_AHEAD: dict[tuple[str, str], str] = {}
"""``(package, distribution)``: why it is declared although nothing imports it yet."""


def distribution_of(module: str) -> str:
    """Return the distribution that provides ``module``."""
    top = module.split(".")[0]
    return DISTRIBUTION_OF[top] if top in DISTRIBUTION_OF else top.strip("_").replace("_", "-").lower()


def is_foreign(module: str, package: Package) -> bool:
    """Return True unless ``module`` belongs to Python or to ``package`` itself."""
    top = module.split(".")[0]
    return top != package.import_name and top not in sys.stdlib_module_names


def allowed_names(package: Package, found: Import) -> set[str]:
    """Return the distributions that ``found`` may come from."""
    if found.kind is not Kind.ALWAYS:
        return package.required_names | package.extra_names
    return package.required_names


def undeclared(package: Package, siblings: Mapping[str, Package]) -> Iterator[str]:
    """Yield imports that ``package`` does not declare."""
    for _, file in package.modules():
        for found in imports_of(file):
            top = found.module.split(".")[0]
            if not is_foreign(found.module, package):
                continue
            if found.kind is Kind.TEXT and owner_of(siblings, found.module) is None:
                continue  # a string that merely looks like a module
            if top in OF_THE_DEVICE and found.kind is not Kind.ALWAYS:
                continue
            distribution = distribution_of(found.module)
            if distribution not in allowed_names(package, found):
                declared = distribution in package.extra_names
                hint = (
                    "it is an extra: import it inside the function that needs it"
                    if declared
                    else "not declared"
                )
                yield f"{file}:{found.line}: `{found.module}` ({distribution}): {hint}"


def unused(package: Package) -> Iterator[str]:
    """Yield declared dependencies that nothing in ``package`` uses."""
    used = set()
    for _, file in package.modules():
        for found in imports_of(file):
            if found.kind is not Kind.TYPING and is_foreign(found.module, package):
                used.add(distribution_of(found.module))
    wanted = package.required_names | {name for name in package.extra_names if not name.startswith("accel")}
    for name in sorted(wanted - used):
        if (package.name, name) not in DECLARED_AHEAD:
            yield f"{package.folder}/pyproject.toml: `{name}` is declared, nothing imports it"
    for owner, name in DECLARED_AHEAD:
        if owner == package.name and (name in used or name not in wanted):
            yield f"tools/checks/dependencies.py: `DECLARED_AHEAD` needs ({owner}, {name}) no more"


def unknown_extras(package: Package, siblings: Mapping[str, Package]) -> Iterator[str]:
    """Yield mentions of extras that do not exist, in sources, README and ``pyproject.toml``."""
    files = [file for _, file in package.modules()]
    files += [
        file for file in (package.folder / "README.md", package.folder / "pyproject.toml") if file.is_file()
    ]
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            for name, extras in re.findall(r"(?<![\w-])(accel(?:-[a-z]+)?)\[([a-z][\w,-]*)\]", line):
                known = siblings[name].extras if name in siblings else {}
                for extra in extras.split(","):
                    if extra not in known:
                        yield f"{file}:{number}: `{name}` has no extra `{extra}`"


def wrong_sibling_ranges(package: Package, siblings: Mapping[str, Package]) -> Iterator[str]:
    """Yield requirements of siblings that are not of the form ``~=0.1.0`` or do not admit the checkout's version."""
    extras = [each for group in package.extras.values() for each in group]
    for requirement in [*package.dependencies, *extras]:
        sibling = siblings.get(requirement_name(requirement))
        if sibling is None:
            continue
        file = f"{package.folder}/pyproject.toml"
        try:
            floor = sibling_floor(requirement)
        except ValueError as problem:
            yield f"{file}: {problem}"
        else:
            if not is_admitted(sibling.version, floor):
                yield f"{file}: `{requirement}` does not admit {sibling.version}, the version of this checkout"


def torch_requirements(package: Package) -> set[str]:
    """Return what ``package`` requires of torch: one requirement, or none."""
    return {each for each in package.dependencies if requirement_name(each) == "torch"}


def python_releases(package: Package) -> list[str]:
    """Return the releases of Python that the classifiers of ``package`` name, oldest first."""
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    found = filter(None, map(pattern.fullmatch, package.project.get("classifiers", [])))
    return sorted((each[1] for each in found), key=lambda release: int(release.split(".")[1]))


def differing_ranges(packages: Mapping[str, Package], readme: Path) -> Iterator[str]:
    """Yield packages whose range of torch or Python is not that of the first, and ranges ``readme`` does not say."""
    first = next(iter(packages.values()))
    torch = set().union(*map(torch_requirements, packages.values()))
    if len(torch) > 1:
        yield f"packages/*/pyproject.toml: different requirements of torch: {', '.join(sorted(torch))}"
    pythons = python_releases(first)
    for package in packages.values():
        file = package.folder / "pyproject.toml"
        if python_releases(package) != pythons:
            yield f"{file}: its Python classifiers are not those of `{first.name}`"
        if package.project.get("requires-python") != first.project.get("requires-python"):
            yield f"{file}: its `requires-python` is not that of `{first.name}`"
    if pythons and first.project.get("requires-python") != f">={pythons[0]}":
        yield f"{first.folder}/pyproject.toml: `requires-python` is not `>={pythons[0]}`, the first classifier"
    text = readme.read_text(encoding="utf-8")
    wanted = [f"torch {each.removeprefix('torch>=')} to " for each in torch]
    wanted += [f"Python {pythons[0]} to {pythons[-1]}"] if pythons else []
    for range_ in wanted:
        if range_ not in text:
            yield f"{readme}: does not say `{range_}`, which the packages declare"


def problems(root: Path) -> list[str]:
    """Return every difference between imports, declarations and README in the packages of ``root``."""
    packages = read_packages(root)
    found = list(differing_ranges(packages, root / "README.md"))
    for package in packages.values():
        found += [*undeclared(package, packages), *unused(package), *unknown_extras(package, packages)]
        found += wrong_sibling_ranges(package, packages)
    return [line.replace(f"{root}/", "") for line in found]


if __name__ == "__main__":
    sys.exit(report(problems(ROOT)))
