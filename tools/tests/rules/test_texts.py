"""Relative links lead to files, tests that pages name are there, and no file speaks of one person's machine."""

import re
import subprocess

from tools.site.places import for_site
from tools.workspace import ROOT

FORBIDDEN = (
    r"(?<![\w./])/(?:home|Users)/(?!you\b|user\b|me\b|<)\w+",
    r"(?<![\w./-])/(?:root|work|workspace|mnt|scratch)/[\w.]",
    r"(?<![\w./-])/(?:tmp/w\b|opt/(?:wheels|pypi))(?!\.)",
    r"[A-Z]:\\\\?Users\\",
    r"^(?:<{7} |>{7} |={7}$)",  # a merge conflict
)
NOT_READ = (":!LICENSE", ":!packages/*/LICENSE", f":!{__file__}")
OF_DEVELOPERS = ("AGENTS.md", "CONTRIBUTING.md", "tools/README.md")
TEST = re.compile(r"`([\w/-]+\.py)::(\w+)`")
FILE = re.compile(r"(?<![\w/.*-])(?:[\w-]+/)+[\w-]+\.(?:py|md|toml|txt)\b")


def git(*words):
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout.splitlines()


def test_no_file_names_a_folder_of_one_machine_or_is_left_of_a_merge():
    assert git("grep", "-nIP", "--untracked", "|".join(FORBIDDEN), "--", ".", *NOT_READ) == []


def test_what_pages_link_to_or_name_is_there():
    """Building the site checks the headings that links name."""
    places = (ROOT, ROOT / "tools", ROOT / "packages", *ROOT.glob("packages/*/src"))
    for page in git("ls-files", "--cached", "--others", "--exclude-standard", "*.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for_site(text, source=page, page=page)  # a ValueError names the link
        for file in FILE.findall(text) if page in OF_DEVELOPERS else ():
            assert any((place / file).exists() for place in places), (page, file)
        for file, test in TEST.findall(text):
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (page, file, test)
