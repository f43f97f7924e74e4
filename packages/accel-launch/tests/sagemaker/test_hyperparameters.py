from __future__ import annotations

import json

import pytest

from accel_launch.sagemaker.hyperparameters import hyperparameters_of
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
        ("--a 1 --a 2", "`--a` stands twice"),
        ("-- x", "`--` has no name"),
    ],
)
def test_what_sagemaker_cannot_hand_over_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        hyperparameters_of(arguments.split())
