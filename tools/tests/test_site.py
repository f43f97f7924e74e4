import re

import pytest
import yaml

from tools.running import SetupError
from tools.site.build import SHIPPED, install
from tools.site.hooks import generated_pages
from tools.site.places import for_site
from tools.workspace import ROOT, read_packages


def test_every_command_and_example_is_there():
    pages = generated_pages(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["nav"])
    for package in read_packages().values():
        for name in package.project.get("entry-points", {}).get("accel.commands", {}):
            assert f"[`accel {name}`]({name}.md)" in pages["reference/cli/index.md"]
            assert pages[f"reference/cli/{name}.md"]
    for script in (ROOT / "docs" / "examples").glob("*.py"):
        assert f"]({script.stem}.md)** `{script.name}`" in pages["examples/index.md"]
        page = pages[f"examples/{script.stem}.md"]
        assert f"](../images/{script.stem}.png)" in page
        assert "\n```text\n$ " in page


def test_each_decision_is_named_at_the_line_that_it_rules():
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "packages").glob("*/src/**/*.py")]
    decisions = {f"docs/decisions/{file.name}" for file in (ROOT / "docs" / "decisions").glob("*.md")}
    assert decisions == {name for text in sources for name in re.findall(r"docs/decisions/[\w-]+\.md", text)}


def test_links_lead_to_pages_and_others_become_text():
    text = "[a](../train/data.md#there) [b](../../packages/accel-ops) [d](../../pyproject.toml) `[a](b.md)` [e](#e)"
    assert for_site(text, source="docs/start/x.md", page="start/x.md") == (
        "[a](../train/data.md#there) [b](../reference/packages/accel-ops.md) d `[a](b.md)` [e](#e)"
    )
    with pytest.raises(ValueError, match="`docs/x.md` links to `docs/gone.md`, which is not there"):
        for_site("![picture](gone.md)", source="docs/x.md", page="x.md")


def test_an_installed_site_has_the_licenses_of_what_it_ships(tmp_path):
    site, packages, copy = (tmp_path / name for name in ("site", "packages", "copy"))
    site.mkdir()
    for name in ("index.html", "search.js.map"):
        (site / name).touch()
    for name in SHIPPED:
        folder = packages / f"{name}-9.8.1.dist-info" / "licenses"
        folder.mkdir(parents=True)
        (folder / "LICENSE").write_text(name)
    install(site, packages, into=copy)
    names = {"index.html", "licenses/lunr.txt", *(f"licenses/{name}.txt" for name in SHIPPED)}
    assert {file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()} == names
    (packages / f"{SHIPPED[0]}-9.8.1.dist-info" / "licenses" / "LICENSE").unlink()
    with pytest.raises(SetupError, match="without a file with its license"):
        install(site, packages, into=copy)
