import pytest

from tools.setup.running import SetupError
from tools.site.installed import SHIPPED, install


@pytest.fixture
def site(tmp_path):
    """A built site, and a folder of installed distributions with their licences."""
    for name in ("index.html", "search.js", "search.js.map", "lunr/lunr.de.js"):
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    for name in SHIPPED:
        folder = tmp_path / "packages" / f"{name}-9.8.1.dist-info" / "licenses"
        folder.mkdir(parents=True)
        (folder / "LICENSE").write_text(f"Licence of {name}")
    return tmp_path


def test_an_installed_site_has_the_licences_of_what_it_ships(site):
    (site / "copy").mkdir()
    (site / "copy" / "old.html").touch()
    install(site / "site", site / "packages", into=site / "copy")
    found = {
        file.relative_to(site / "copy").as_posix() for file in (site / "copy").rglob("*") if file.is_file()
    }
    assert found == {
        "index.html",
        "search.js",
        "licenses/lunr.txt",
        *(f"licenses/{name}.txt" for name in SHIPPED),
    }
    assert (site / "copy" / "licenses" / "mkdocs_material.txt").read_text() == "Licence of mkdocs_material"
    assert "Oliver Nightingale" in (site / "copy" / "licenses" / "lunr.txt").read_text()


def test_a_distribution_without_a_licence_is_refused(site):
    (site / "packages" / "mkdocs-9.8.1.dist-info" / "licenses" / "LICENSE").unlink()
    with pytest.raises(SetupError, match="`mkdocs` is installed in .* without a file with its license"):
        install(site / "site", site / "packages", into=site / "copy")
