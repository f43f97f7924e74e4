from tools.checks.imports import Kind, imports_of


def kinds(tmp_path, code):
    file = tmp_path / "module.py"
    file.write_text(code)
    return [(found.module, found.kind) for found in imports_of(file)]


def test_what_stands_at_module_level_is_imported_always(tmp_path):
    assert kinds(tmp_path, "import a.b\nfrom c import d\n") == [("a.b", Kind.ALWAYS), ("c", Kind.ALWAYS)]


def test_a_class_body_is_run_at_import_but_its_methods_are_not(tmp_path):
    code = "class A:\n    import a\n    def f(self):\n        import b\n"
    assert kinds(tmp_path, code) == [("a", Kind.ALWAYS), ("b", Kind.LATER)]


def test_the_other_branch_of_type_checking_is_run(tmp_path):
    code = "import typing\nif typing.TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
    assert kinds(tmp_path, code)[1:] == [("a", Kind.TYPING), ("b", Kind.ALWAYS)]


def test_the_handler_of_a_guarded_import_is_not_guarded(tmp_path):
    code = "try:\n    import a\nexcept ModuleNotFoundError:\n    import b\n"
    assert kinds(tmp_path, code) == [("a", Kind.LATER), ("b", Kind.ALWAYS)]


def test_strings_that_read_like_modules_are_found(tmp_path):
    found = kinds(tmp_path, "X = {'f': 'accel_ops.seeds:set_seed'}\nY = 'two words'\n")
    assert ("accel_ops.seeds", Kind.TEXT) in found
    assert not any("two" in module for module, _ in found)
