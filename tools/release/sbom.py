"""Software bills of materials (SBOM) of the files in ``dist/``.

``python -m tools.release.sbom [--tested FILE …] PACKAGE …`` writes CycloneDX 1.6, a JSON file for each package: name,
version, license, digests of the wheel and the source distribution, what the package requires, in which range, and with
which versions it was tested. The same files, tested with the same versions, give the same SBOM.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from tools.release.artifacts import Artifacts, artifacts_of, sha256_of
from tools.release.build import DIST
from tools.release.places import sbom_file
from tools.setup.environment import shown
from tools.setup.failures import SetupError
from tools.workspace import ROOT, Package, read_packages, requirement_name


def read_tested(files: Sequence[Path]) -> dict[str, list[str]]:
    """Return which versions of each distribution were tested, in the order of ``files``.

    Each file has ``{name: version}`` in JSON.
    """
    tested: dict[str, list[str]] = {}
    for file in files:
        for name, version in json.loads(file.read_text(encoding="utf-8")).items():
            versions = tested.setdefault(requirement_name(name), [])
            if version not in versions:
                versions.append(version)
    return tested


def required_component(
    requirement: str, *, extra: str | None, tested: Mapping[str, Sequence[str]]
) -> Component:
    """Return the SBOM entry of one requirement; its version is the last tested one."""
    name = requirement_name(requirement)
    versions = tested.get(name, ())
    version = versions[-1] if versions else None
    properties = [Property(name="accel:requirement", value=requirement)]
    properties += [Property(name="accel:extra", value=extra)] if extra else []
    properties += [Property(name="accel:tested", value=each) for each in versions]
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=f"{extra or 'required'}:{requirement}",
        purl=PackageURL("pypi", name=name, version=version),
        scope=ComponentScope.OPTIONAL if extra else ComponentScope.REQUIRED,
        properties=properties,
    )


def sbom_of(
    package: Package,
    artifacts: Artifacts,
    *,
    tested: Mapping[str, Sequence[str]],
    timestamp: datetime.datetime,
) -> Bom:
    """Return the SBOM of a release of ``package``."""
    published = [
        ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(file.name),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256_of(file))],
        )
        for file in artifacts.files
    ]
    purl = PackageURL("pypi", name=package.name, version=package.version)
    itself = Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=purl.to_string(),
        purl=purl,
        description=str(package.project["description"]),
        licenses=[LicenseExpression(str(package.project["license"]))],
        external_references=published,
    )
    extras = [(each, extra) for extra, group in package.extras.items() for each in group]
    wanted = [*((each, None) for each in package.dependencies), *extras]
    components = [required_component(each, extra=extra, tested=tested) for each, extra in wanted]
    digests = " ".join(sha256_of(file) for file in artifacts.files)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{purl.to_string()} {digests}"),
        metadata=BomMetaData(component=itself, timestamp=timestamp),
        components=components,
    )
    bom.register_dependency(itself, components)
    return bom


def as_json(bom: Bom) -> str:
    """Return ``bom`` as JSON.

    Raises:
        SetupError: If it is no valid CycloneDX 1.6.
    """
    text = str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise SetupError(f"The SBOM is no valid CycloneDX 1.6: {problem}")
    return text


def commit_time(root: Path) -> datetime.datetime:
    """Return when the commit that is checked out in ``root`` was made."""
    command = ["git", "log", "-1", "--format=%cI"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return datetime.datetime.fromisoformat(done.stdout.strip())


def main(words: Sequence[str]) -> int:
    """Write the SBOMs of the packages that ``words`` name; return the exit code."""
    packages = read_packages()
    parser = argparse.ArgumentParser(prog="python -m tools.release.sbom", description=__doc__)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", choices=list(packages))
    parser.add_argument(
        "--tested", metavar="FILE", type=Path, action="append", default=[], help="JSON of {name: version}"
    )
    arguments = parser.parse_args(words)
    tested = read_tested(arguments.tested)
    try:
        for name in arguments.packages:
            package = packages[name]
            artifacts = artifacts_of(package, DIST)
            bom = sbom_of(package, artifacts, tested=tested, timestamp=commit_time(ROOT))
            file = sbom_file(package)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(as_json(bom), encoding="utf-8")
            print(f"  {shown(file)}")
    except SetupError as problem:
        print(f"error: {name}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
