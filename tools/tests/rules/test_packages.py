"""Every package has the same parts, its tests mirror its sources, and no stub hides code from type checkers."""

import ast
from graphlib import TopologicalSorter

import grimp
import pytest

from tools.workspace import read_packages

PACKAGES = read_packages()
each_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)


@each_package
def test_a_package_has_the_parts_of_every_other(package):
    files = [package.folder / name for name in ("README.md", "CHANGELOG.md", "LICENSE")]
    assert all(file.read_text(encoding="utf-8").strip() for file in (*files, package.source / "__init__.py"))
    assert (package.source / "py.typed").is_file()


@each_package
def test_tests_are_in_the_folder_of_what_they_test(package):
    folders = {file.parent.relative_to(package.tests) for file in package.tests.rglob("test_*.py")}
    assert [folder for folder in folders if not (package.source / folder).is_dir()] == []


@each_package
def test_no_stub_hides_code_from_type_checkers(package):
    """They read only the stub of a module that has one."""
    modules = dict(package.modules())
    for name, stub in package.modules(".pyi"):
        code = ast.parse(modules[name].read_text(encoding="utf-8") if name in modules else "").body
        hidden = [node.name for node in code if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        assert set(hidden) <= {"__getattr__"}, stub


def test_modules_do_not_import_each_other_in_a_circle():
    """Nor in functions, nor for the type checker, where a package names modules that it re-exports lazily."""
    names = [package.import_name for package in PACKAGES.values()]
    graph, at_runtime = (
        grimp.build_graph(*names, exclude_type_checking_imports=excluded, cache_dir=None)
        for excluded in (False, True)
    )
    imports = {}
    for module in graph.modules:
        inside = {
            each for each in graph.find_modules_directly_imported_by(module) if each.startswith(f"{module}.")
        }
        lazy = {
            each for each in inside if not at_runtime.direct_import_exists(importer=module, imported=each)
        }
        imports[module] = graph.find_modules_directly_imported_by(module) - lazy
    TopologicalSorter(imports).prepare()  # its CycleError names the circle
