from __future__ import annotations

import json

import pytest

from accel_launch.sagemaker.inputs import hyperparameters_of, pairs_of
from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--model_name_or_path bert --do_train False", {"model_name_or_path": "bert", "do_train": False}),
        (
            "--epochs 3 --max_steps 50.5 --learning_rate 5e-5",
            {"epochs": 3, "max_steps": 50.5, "learning_rate": 5e-5},
        ),
        ("--lr=-1e-3 --shift -2", {"lr": -1e-3, "shift": -2}),
        ("--version 1.10 --code 007 --big 1_000", {"version": "1.10", "code": "007", "big": "1_000"}),
        ("--fast true --word nan --other inf", {"fast": "true", "word": "nan", "other": "inf"}),
        ("-n 3 --a-b x=y", {"n": 3, "a-b": "x=y"}),
        ("", {}),
    ],
)
def test_named_arguments_become_hyperparameters(arguments, found):
    assert hyperparameters_of(arguments.split()) == found
    assert [type(value) for value in hyperparameters_of(arguments.split()).values()] == [
        type(value) for value in found.values()
    ]


@pytest.mark.parametrize(
    "text", ["3", "-2", "0.5", "True", "1.10", "007", "1e400", "--", "a b", "", "nan", "1E5"]
)
def test_the_script_reads_the_same_again(text):
    """SageMaker sends JSON, and gives the script `str` of what it reads from that."""
    value = hyperparameters_of([f"--a={text}"])["a"]
    again = str(json.loads(json.dumps(value)))
    assert again == text or float(again) == float(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--do_train --do_test False", "`--do_train` has no value"),
        ("--epochs 3 --fast", "`--fast` has no value"),
        ("data.csv --epochs 3", "`data.csv` has no name"),
        ("--dtypes fp16 int8", "`int8` has no name, or is a second value"),
        ("--a 1 --a 2", "`--a` is given twice"),
        ("-- x", "`--` has no name"),
    ],
)
def test_what_sagemaker_cannot_hand_over_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        hyperparameters_of(arguments.split())


def test_pairs_with_a_heading_and_without(tmp_path):
    file = tmp_path / "inputs.tsv"
    file.write_text("channel_name\tdata_location\ntrain\ts3://bucket/train\n\ntest\ts3://bucket/test\n")
    places = [("train", "s3://bucket/train"), ("test", "s3://bucket/test")]
    assert pairs_of(file, "places") == places
    file.write_text("train\ts3://bucket/train\ntest\ts3://bucket/test\n")
    assert pairs_of(file, "places") == places
    file.write_text("metric_name\tmetric_regex\naccuracy\t'accuracy': ([0-9.]+)\nf1\t'f1': (.*?)\n")
    assert pairs_of(file, "patterns") == [("accuracy", "'accuracy': ([0-9.]+)"), ("f1", "'f1': (.*?)")]
    file.write_text("")
    assert pairs_of(file, "places") == []


def test_what_is_no_table_is_refused(tmp_path):
    file = tmp_path / "inputs.tsv"
    with pytest.raises(ConfigError, match="`.*inputs.tsv`, with the places, cannot be read"):
        pairs_of(file, "the places")
    file.write_text("train\ts3://a\ntest s3://b\n")
    with pytest.raises(
        ConfigError, match="Line 2 of `.*inputs.tsv` must be two columns with a tab.* got `test s3://b`"
    ):
        pairs_of(file, "the places")
