"""`accel init` copies examples, and says how to run them."""

import ast
import sys
from pathlib import Path

import pytest

from accel.commands.init import copy_example, find_examples, installations
from accel_launch.cli import main
from accel_state.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_examples_are_listed_with_what_they_show(capsys):
    assert main(["init"]) == 0
    printed = capsys.readouterr().out
    assert "digits" in printed
    for name, path in find_examples().items():
        assert name in printed, path


def test_a_script_is_copied_with_a_config_and_the_command_that_runs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "digits"]) == 0
    assert {path.name for path in Path("digits").iterdir()} == {"digits.py", "check_digits.py", "accel.yaml"}
    ast.parse(Path("digits/digits.py").read_text())
    printed = capsys.readouterr().out.splitlines()
    assert "cd digits" in printed
    assert printed[-1] == "accel launch --config_file accel.yaml digits.py"


def test_a_script_that_imports_an_example_goes_along(tmp_path, capsys):
    assert main(["init", "sharded", str(tmp_path / "mine")]) == 0
    assert {path.name for path in (tmp_path / "mine").glob("*.py")} == {"sharded.py", "generate_text.py"}
    assert capsys.readouterr().out.splitlines()[-1].endswith(" sharded.py")


def test_a_script_that_continues_an_example_comes_with_it_and_is_run_after_it(tmp_path, capsys):
    assert main(["init", "check_digits", str(tmp_path / "mine")]) == 0
    assert {path.name for path in (tmp_path / "mine").glob("*.py")} == {"digits.py", "check_digits.py"}
    lines = capsys.readouterr().out.splitlines()
    assert "pip install scikit-learn tensorboard matplotlib tqdm" in lines
    assert lines[-2:] == ["accel launch --config_file accel.yaml digits.py", "python check_digits.py"]


def test_all_examples_of_the_gallery_can_be_copied():
    gallery = {path.stem for path in (Path(__file__).parents[4] / "docs" / "examples").glob("*.py")}
    assert gallery <= find_examples().keys()


def test_the_docstring_of_a_copy_names_the_copy(tmp_path, capsys):
    assert main(["init", "metrics", str(tmp_path / "mine")]) == 0
    text = (tmp_path / "mine" / "metrics.py").read_text()
    assert "    python metrics.py\n" in text
    assert "docs/examples" not in text


def test_a_folder_with_a_space_is_quoted(tmp_path, capsys):
    assert main(["init", "metrics", str(tmp_path / "start here")]) == 0
    assert f"cd '{tmp_path}/start here'" in capsys.readouterr().out.splitlines()


def test_an_example_that_launches_processes_itself_is_not_launched(tmp_path, capsys):
    assert main(["init", "every_axis", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "python every_axis.py"


def test_what_an_example_needs_is_named(tmp_path, capsys):
    assert main(["init", "lora", str(tmp_path / "adapters")]) == 0
    assert "pip install transformers peft" in capsys.readouterr().out


OF_ACCEL = {"torch", "safetensors"}  # come with it
NEEDED_BY_ACCEL = {"tqdm"}  # names of accel that need a package of the same name
PACKAGES = {"sklearn": "scikit-learn"}  # by modules; others have the name of their module


@pytest.mark.parametrize(
    "name", sorted(name for name, path in find_examples().items() if path.suffix == ".py")
)
def test_every_package_that_a_script_imports_is_named(name):
    script = find_examples()[name]
    statements = list(ast.walk(ast.parse(script.read_text())))
    modules = {one.module for one in statements if isinstance(one, ast.ImportFrom)}
    modules |= {alias.name for one in statements if isinstance(one, ast.Import) for alias in one.names}
    roots = {module.partition(".")[0] for module in modules} - OF_ACCEL - sys.stdlib_module_names
    roots -= find_examples().keys()
    needed = {PACKAGES.get(root, root) for root in roots if not root.startswith("accel")}
    needed |= NEEDED_BY_ACCEL & {
        alias.name for one in statements if isinstance(one, ast.ImportFrom) for alias in one.names
    }
    assert needed <= {word for line in installations(script) for word in line.split()}


def test_a_folder_is_copied_whole(tmp_path, capsys):
    assert main(["init", "own_strategy", str(tmp_path / "mine")]) == 0
    assert (tmp_path / "mine" / "src" / "delayed_averaging" / "strategy.py").is_file()
    assert capsys.readouterr().out.splitlines()[-1] == "accel launch --config_file accel.yaml train.py"


def test_a_notebook_is_opened_otherwise(tmp_path, capsys):
    assert main(["init", "notebook", str(tmp_path / "notes")]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "pip install jupyterlab scikit-learn",
        "jupyter lab notebook.ipynb",
    ]


def test_what_is_there_is_left_alone(tmp_path, capsys):
    (tmp_path / "digits.py").write_text("mine")
    assert main(["init", "digits", str(tmp_path)]) == 1
    assert "is there and not empty" in capsys.readouterr().err
    assert (tmp_path / "digits.py").read_text() == "mine"
    assert main(["init", "digits", str(tmp_path / "digits.py")]) == 1
    assert "is a file" in capsys.readouterr().err


def test_a_file_that_cannot_be_copied_is_named(tmp_path):
    example, folder = tmp_path / "example", tmp_path / "mine"
    example.mkdir()
    (example / "data").symlink_to("nowhere")
    folder.mkdir()
    with pytest.raises(ConfigError, match="cannot be written: .*No such file or directory.*example/data"):
        copy_example(example, folder)


def test_an_unknown_example_is_named_beside_those_there_are(capsys):
    assert main(["init", "digitz"]) == 1
    told = capsys.readouterr().err
    assert "digitz" in told
    assert "digits" in told
