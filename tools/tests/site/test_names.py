from accel.utils import __all__ as names_of_utils
from tools.site.names import names_pages
from tools.site.sources import read_sources
from tools.workspace import read_packages


def test_every_name_of_accel_utils_leads_to_its_description():
    packages = read_packages()
    page = dict(names_pages(packages, read_sources(packages)))["reference/names.md"]
    for name in names_of_utils:
        assert f"\n| `{name}` | " in page
    assert "| [`accel_ops.set_seed`][accel_ops.set_seed] |" in page
    assert "::: accel_state.environment.patching.patch_environment\n" in page
