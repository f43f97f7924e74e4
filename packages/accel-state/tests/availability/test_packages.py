from __future__ import annotations

import inspect

import pytest

from accel_state import availability
from accel_state.availability import packages
from accel_state.environment import patch_environment

# Every check that users' code calls, with its parameters.
SIGNATURES = {
    "is_bnb_available": "(min_version=None)",
    "is_numpy_available": "(min_version='1.25.0')",
} | dict.fromkeys(
    (
        f"is_{name}_available"
        for name in [
            "4bit_bnb",
            "8bit_bnb",
            "aim",
            "amdsmi",
            "bitsandbytes_multi_backend",
            "boto3",
            "clearml",
            "comet_ml",
            "datasets",
            "deepspeed",
            "dvclive",
            "fp8",
            "import_timer",
            "lomo",
            "matplotlib",
            "megatron_lm",
            "mlflow",
            "msamp",
            "pandas",
            "peft",
            "pippy",
            "pynvml",
            "pytest",
            "rich",
            "sagemaker",
            "schedulefree",
            "swanlab",
            "tensorboard",
            "timm",
            "torchao",
            "torchdata",
            "torchdata_stateful_dataloader",
            "torchvision",
            "tqdm",
            "trackio",
            "transformer_engine",
            "transformers",
            "triton",
            "wandb",
            "weights_only",
        ]
    ),
    "()",
)


def install(folder, distribution, version, module):
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text("raise AssertionError('imported')\n")


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_check_has_the_known_signature_and_answers_yes_or_no(name):
    check = getattr(availability, name)
    bare = inspect.signature(check).replace(return_annotation=inspect.Signature.empty)
    bare = bare.replace(
        parameters=[one.replace(annotation=inspect.Parameter.empty) for one in bare.parameters.values()]
    )
    assert str(bare) == SIGNATURES[name]
    assert check.__name__ == name
    assert check.__doc__
    assert check() in (True, False)


@pytest.mark.parametrize("name", packages.WHY_NOT)
def test_check_and_reason_agree(name):
    assert getattr(packages, f"is_{name}_available")() is (packages.WHY_NOT[name]() is None)


@pytest.mark.parametrize("name", packages.PACKAGES)
def test_every_row_of_the_table_has_its_check_and_the_other_way_round(name):
    assert f"is_{name}_available" in SIGNATURES


def test_what_the_tests_themselves_need_is_available():
    assert packages.is_pytest_available()
    assert packages.is_weights_only_available()
    assert packages.is_pippy_available()


@pytest.mark.usefixtures("nothing_installed")
def test_a_package_becomes_available_by_being_installed_and_is_not_imported(tmp_path, monkeypatch):
    assert not packages.is_wandb_available()
    install(tmp_path, "wandb", "1.0", "wandb")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert packages.is_wandb_available()


@pytest.mark.parametrize(
    ("version", "four_bit", "eight_bit", "multi_backend"),
    [("0.30.0", False, False, False), ("0.38.0", False, True, False), ("0.46.0", True, True, True)],
)
def test_bitsandbytes_is_judged_by_its_version(
    tmp_path, monkeypatch, version, four_bit, eight_bit, multi_backend
):
    install(tmp_path, "bitsandbytes", version, "bitsandbytes")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert packages.is_bnb_available()
    assert packages.is_4bit_bnb_available() is four_bit
    assert packages.is_8bit_bnb_available() is eight_bit
    assert packages.is_bitsandbytes_multi_backend_available() is multi_backend
    assert packages.is_bnb_available(min_version="0.45.0") is multi_backend


@pytest.mark.usefixtures("nothing_installed")
def test_numpy_is_judged_by_the_version_asked_for(tmp_path, monkeypatch):
    install(tmp_path, "numpy", "1.26.4", "numpy")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert packages.is_numpy_available(min_version="1.26")
    assert not packages.is_numpy_available(min_version="1.27")


def test_rich_has_to_be_asked_for(tmp_path, monkeypatch):
    install(tmp_path, "rich", "99.0", "rich")
    monkeypatch.syspath_prepend(str(tmp_path))
    with patch_environment(ACCELERATE_ENABLE_RICH="1"):
        assert packages.is_rich_available()
    with patch_environment(ACCELERATE_ENABLE_RICH=None):
        assert not packages.is_rich_available()
        assert "Set `ACCELERATE_ENABLE_RICH=true`" in packages.WHY_NOT["rich"]()


def test_one_library_is_enough_for_fp8(tmp_path, monkeypatch):
    install(tmp_path, "torchao", "99.0", "torchao")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert packages.is_fp8_available()


def test_tensorboardx_will_do_for_tensorboard(tmp_path, monkeypatch):
    install(tmp_path, "tensorboardX", "2.6", "tensorboardX")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert packages.is_tensorboard_available()
