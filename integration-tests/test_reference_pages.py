"""Tables on reference pages show what the code declares."""

import re
from dataclasses import fields
from inspect import getmembers, isfunction

import pytest
from reference_pages import ROOT, tables_of

import accel_state.errors
import accel_trackers.errors
from accel_backends import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accel_backends.strategies.capabilities import Feature
from accel_backends.strategies.selection import STRATEGIES, why_not_on
from accel_state.devices import known_vendors
from accel_state.environment.settings import SETTINGS
from accel_trackers import ABILITIES, LOGGER_TYPE_TO_CLASS, ServiceTracker

CAPABILITIES = {name: STRATEGIES.get(name)().capabilities for name in STRATEGIES.names()}
VENDORS = {vendor.name: vendor for vendor in known_vendors()}
NEEDED_FEATURES = {
    "clipping by value": Feature.CLIP_BY_VALUE,
    "several models": Feature.SEVERAL_MODELS,
    "accumulation over several models": Feature.SEVERAL_MODELS,
    "`save_model` in parts": Feature.SAVE_MODEL,
    "`torch.compile`": Feature.COMPILE,
    "uneven inputs (`join_uneven_inputs`)": Feature.JOIN,
    "local SGD": Feature.LOCAL_SGD,
    "communication hooks": Feature.COMMUNICATION_HOOK,
}
OF_SHARDED = {"CPU offload", "meta-device initialization"}


def is_declared(capabilities, row):
    """Whether a strategy with these capabilities does what the row of the table states."""
    if row in NEEDED_FEATURES:
        return NEEDED_FEATURES[row] not in capabilities.lacks
    if row in OF_SHARDED:
        return capabilities.shards_parameters
    if axis := re.search(r"\(`(\w+)_size`\)", row):
        return axis[1] in capabilities.mesh_axes
    if row in ("bf16", "fp16", "fp8"):
        on = [vendor for vendor in VENDORS.values() if why_not_on(vendor, capabilities) is None]
        return any(row in vendor.precisions for vendor in on) and (
            row != "fp8" or capabilities.takes_exchanged_layers
        )
    return True


def is_of_several(row):
    return "_size`)" in row or row in (
        "uneven inputs (`join_uneven_inputs`)",
        "local SGD",
        "communication hooks",
    )


def test_the_page_of_engines_has_no_where_a_strategy_declares_that_it_does_not():
    features, devices = tables_of("docs/reference/engines.md")
    assert {name.strip("`") for row in features.values() for name in row} == CAPABILITIES.keys()
    for row, cells in features.items():
        for name, capabilities in CAPABILITIES.items():
            cell, is_empty = cells[f"`{name}`"], is_of_several(row) and not capabilities.needs_collectives
            is_refused = not is_empty and not is_declared(capabilities, row)
            assert (cell == "", cell == "no") == (is_empty, is_refused), (row, name)
    assert [name.strip("`") for name in devices] == list(VENDORS)
    for device, cells in devices.items():
        for name, capabilities in CAPABILITIES.items():
            is_refused = why_not_on(VENDORS[device.strip("`")], capabilities) is not None
            assert (cells[f"`{name}`"] == "no") == is_refused, (device, name)


def test_the_page_of_devices_names_their_precisions_strategies_and_backends():
    (table,) = tables_of("docs/reference/devices.md")
    for row, vendor in zip(table.items(), known_vendors(), strict=True):
        device, cells = row
        assert device == f"{vendor.label}, `{vendor.name}`"
        takes = [each for each, has in CAPABILITIES.items() if why_not_on(vendor, has) is None]
        backend = [vendor.collective_backend, vendor.distributed_type] if vendor.collective_backend else []
        for column, names in (
            ("`mixed_precision`", ["no", *vendor.precisions]),
            ("strategies", sorted(takes)),
            ("several processes", backend),
            ("compiles with", [vendor.compiler]),
        ):
            cell = re.sub(r"\(.*?\)", "", cells[column])  # what a precision needs
            assert re.findall(r"`([\w:,]+)`", cell) == names, device


@pytest.mark.parametrize(
    ("kind", "column"), [(FullyShardedDataParallelPlugin, "FSDP"), (DeepSpeedPlugin, "DeepSpeed")]
)
def test_every_field_of_a_plugin_is_in_one_row_and_every_flag_is_there(kind, column):
    (table,) = tables_of("docs/reference/sharding_settings.md")
    listed = re.findall(r"`([\w.]+)`(?! \(key\))", " ".join(row[column] for row in table.values()))
    assert sorted(listed) == sorted(field.name for field in fields(kind) if field.init)
    page = (ROOT / "docs" / "reference" / "sharding_settings.md").read_text(encoding="utf-8")
    flags = [
        each.flag for each in SETTINGS.values() if each.name.startswith(f"{column.lower()}_") and each.flag
    ]
    assert [flag for flag in flags if f"(`{flag}`)" not in page] == []


def test_the_readme_of_the_trackers_names_their_methods():
    tables = tables_of("packages/accel-trackers/README.md")
    (table,) = [each for each in tables if "`log_images`" in next(iter(each.values()))]
    methods = {
        next(name for name in vars(each) if name.startswith("log_")): each for each in ABILITIES.values()
    }
    known = {*dir(ServiceTracker), *methods}
    assert [name.strip("`") for name in table] == sorted(LOGGER_TYPE_TO_CLASS)
    for name, cells in table.items():
        kind = LOGGER_TYPE_TO_CLASS[name.strip("`")]
        others = [
            each for each, _ in getmembers(kind, isfunction) if each not in known and not each.startswith("_")
        ]
        assert {each for each in methods if cells[f"`{each}`"] == "yes"} == {
            each for each, protocol in methods.items() if issubclass(kind, protocol)
        }
        assert cells["other methods"] == ", ".join(f"`{each}`" for each in others)
        assert cells["`log` calls it"] == ("through a queue" if kind.log_in_background else "directly")


def test_the_page_of_errors_names_every_class_and_its_bases():
    (table,) = tables_of("docs/reference/errors.md")
    classes = [
        each
        for module in (accel_state.errors, accel_trackers.errors)
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
    ]
    assert {name: row["is also"] for name, row in table.items()} == {
        f"`{each.__name__}`": ", ".join(f"`{base.__name__}`" for base in each.__bases__) for each in classes
    }
