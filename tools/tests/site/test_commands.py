from accel_launch.options import OPTIONS
from tools.site.commands import command_pages
from tools.workspace import read_packages

PACKAGES = read_packages()
PAGES = dict(command_pages(PACKAGES))


def test_every_command_has_a_page_and_a_line():
    declared = {
        name
        for package in PACKAGES.values()
        for name in package.project.get("entry-points", {}).get("accel.commands", {})
    }
    assert set(PAGES) == {f"reference/cli/{name}.md" for name in {*declared, "index"}}
    for name in declared:
        assert f"[`accel {name}`]({name}.md)" in PAGES["reference/cli/index.md"]


def test_every_flag_of_a_launch_is_there_with_its_help():
    page = PAGES["reference/cli/launch.md"]
    for setting in OPTIONS:
        if setting.flag:
            assert f"{setting.flag}`" in page or f"{setting.flag} " in page, setting.flag
            assert setting.help.replace("|", "\\|") in page


def test_commands_within_commands_are_there():
    page = PAGES["reference/cli/checkpoint.md"]
    assert "## accel checkpoint verify\n" in page
    assert "| `DIR` | one checkpoint, or a folder of them |" in page
