"""The documentation site, opened in Debian's Chromium."""

from tools.commands.docs import build
from tools.engines.protocol import Engine
from tools.setup.environment import Environment
from tools.setup.running import SetupError


def build_site(environment: Environment) -> None:
    """Build the site, in a separate environment. Raises ``SetupError`` if that fails."""
    if build() != 0:
        raise SetupError("The documentation site could not be built; see mkdocs's message above.")


engine = Engine(
    name="site",
    purpose="the documentation site in Chromium: search without a server, accessibility, phones, dark and light",
    tests=("tools/tests/site/test_browser.py",),
    environment=Environment("browser"),
    debian=("chromium",),
    prepare=build_site,
)
