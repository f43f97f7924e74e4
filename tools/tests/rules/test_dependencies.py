"""Each package declares what it imports and imports what it declares.

deptry reads the imports. What it does not read is here: distributions and siblings are named in strings and stubs, and
extras that are named exist. ruff finds extras that are imported early, uv ranges of siblings that admit no other.
"""

import re
import subprocess
import sys

import pytest

from tools.workspace import read_packages

PACKAGES = read_packages()
MODULES = {"megatron-core": "megatron", "nvidia-ml-py": "pynvml", "pillow": "PIL", "pyyaml": "yaml"}
"""Modules of distributions that are not called like them, and may not be installed here."""
OF_THE_DEVICE = ("habana_frameworks", "torch_xla")
"""Imported, but part of a vendor's software: in no extra."""
BY_NAME = ("bitsandbytes", "boto3", "botocore", "huggingface-hub", "nvidia-ml-py", "sagemaker", "tensorboard",
           "tensorboardX", "timm", "transformers")  # fmt: skip
"""Declared, but imported by a name in a string."""
SIBLING = {".py": r"""["'](accel_\w+)\.""", ".pyi": r"(?m)^(?:from|import) (accel\w*)"}
EXTRAS = re.compile(r"(?<![\w-])(accel(?:-[a-z]+)?)\[([a-z][\w,-]*)\]")
each_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)


def text_of(package, suffix=".py"):
    return "\n".join(file.read_text(encoding="utf-8") for _, file in package.modules(suffix))


@each_package
def test_what_is_imported_is_declared_and_what_is_declared_is_imported(package):
    names = ",".join(f"{name}={module}" for name, module in MODULES.items())
    unknown = "|".join((*OF_THE_DEVICE, *(MODULES.get(name, name) for name in BY_NAME)))
    ignored = f"DEP001={unknown},DEP002={'|'.join(BY_NAME)}"
    words = ["src", "--no-ansi", "--package-module-name-map", names, "--per-rule-ignores", ignored]
    command = [sys.executable, "-m", "deptry", *words]
    done = subprocess.run(command, cwd=package.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@each_package
@pytest.mark.parametrize("suffix", SIBLING)
def test_siblings_in_strings_and_stubs_are_declared(package, suffix):
    declared = {
        name.replace("-", "_") for name in (package.name, *package.required_names, *package.extra_names)
    }
    assert set(re.findall(SIBLING[suffix], text_of(package, suffix))) <= declared


@each_package
def test_extras_that_are_named_exist(package):
    pages = (package.folder / name for name in ("README.md", "pyproject.toml"))
    for text in (text_of(package), *(page.read_text(encoding="utf-8") for page in pages)):
        for name, extras in EXTRAS.findall(text):
            assert set(extras.split(",")) <= set(PACKAGES[name].extras), name
