from __future__ import annotations

import pytest

from accel_launch.sagemaker.channels import inputs_of, metrics_of
from accel_state.errors import ConfigError


def test_channels_with_a_heading_and_without(tmp_path):
    file = tmp_path / "inputs.tsv"
    file.write_text("channel_name\tdata_location\ntrain\ts3://bucket/train\n\ntest\ts3://bucket/test\n")
    places = {"train": "s3://bucket/train", "test": "s3://bucket/test"}
    assert inputs_of(file) == places
    file.write_text("train\ts3://bucket/train\ntest\ts3://bucket/test\n")
    assert inputs_of(file) == places
    file.write_text("")
    assert inputs_of(file) == {}


def test_metrics(tmp_path):
    file = tmp_path / "metrics.tsv"
    file.write_text("metric_name\tmetric_regex\naccuracy\t'accuracy': ([0-9.]+)\nf1\t'f1': (.*?)\n")
    assert metrics_of(file) == [
        {"Name": "accuracy", "Regex": "'accuracy': ([0-9.]+)"},
        {"Name": "f1", "Regex": "'f1': (.*?)"},
    ]


def test_what_is_no_table_is_refused(tmp_path):
    file = tmp_path / "inputs.tsv"
    with pytest.raises(ConfigError, match="`.*inputs.tsv`, with the places of its channels, cannot be read"):
        inputs_of(file)
    file.write_text("train\ts3://a\ntest s3://b\n")
    with pytest.raises(
        ConfigError, match="Line 2 of `.*inputs.tsv` must be two columns with a tab.* got `test s3://b`"
    ):
        inputs_of(file)
