import ast
import sys

from tools.setup.presets import demonstration
from tools.workspace import ROOT, read_packages, requirement_name

EXAMPLES = ROOT / "docs" / "examples"
DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def imported_by(script):
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_a_fresh_machine_has_what_the_scripts_of_the_demo_import():
    packages = read_packages()
    installed = {requirement_name(each) for each in demonstration().requirements}
    installed |= {name for package in packages.values() for name in package.required_names}
    own = {package.import_name for package in packages.values()} | {
        path.stem for path in EXAMPLES.glob("*.py")
    }
    for script in ("digits.py", "check_digits.py"):
        others = set(imported_by(EXAMPLES / script)) - own - set(sys.stdlib_module_names)
        assert {DISTRIBUTIONS.get(name, name) for name in others} <= installed, script
