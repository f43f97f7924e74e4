import pytest

from tools.site.packages import own_names, package_pages, surface_lines
from tools.workspace import read_packages

PACKAGES = read_packages()
PAGES = dict(package_pages(PACKAGES))


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_on_the_page_of_its_package(name):
    package = PACKAGES[name]
    page = PAGES[f"reference/packages/{name}.md"]
    lines = surface_lines(package)
    names = [line.removeprefix("class ").removeprefix("def ").removeprefix("module ") for line in lines]
    for public in (each.replace("(", " ").replace(":", " ").split()[0] for each in names):
        assert f"{package.import_name}.{public}" in page


def test_a_name_that_another_package_defines_leads_there():
    page = PAGES["reference/packages/accel.md"]
    assert (
        "| `accel.notebook_launcher` | [`accel_launch.notebook_launcher`][accel_launch.notebook_launcher] |"
        in page
    )
    assert "::: accel.notebook_launcher" not in page
    assert "::: accel.Accelerator\n" in page
    assert "Accelerator" in own_names(PACKAGES["accel"])


def test_every_package_has_its_changes():
    for name in PACKAGES:
        assert PAGES[f"project/changelogs/{name}.md"].startswith(f"# Changes in {name}\n")
