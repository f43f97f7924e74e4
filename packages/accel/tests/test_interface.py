"""The interface that users move over from, name by name: how much of it works."""

import importlib
import inspect
from enum import Enum
from pathlib import Path

NAMES = Path(__file__).with_name("interface_names.txt")
RESOLVED = Path(__file__).with_name("interface_resolved.txt")
"""The names that worked when this file was last written; none of them may be lost."""


def resolves(entry: str) -> bool:
    """Whether `module:name` or `module:Class.member` can be reached."""
    module, _, path = entry.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    for name in path.split("."):
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


def test_no_name_of_the_interface_is_lost(capsys):
    entries = NAMES.read_text().split()
    working = {entry for entry in entries if resolves(entry)}
    with capsys.disabled():
        print(f"\n{len(working)} of {len(entries)} names of the interface resolve")
    lost = sorted(set(RESOLVED.read_text().split()) - working)
    assert not lost, f"{len(lost)} names no longer resolve: {', '.join(lost[:10])}"


LEFT_OUT = {
    "MegatronLMPlugin.set_scheduler_args": "a schedule is made from its `MegatronLMDummyScheduler` and the plugin",
    "MegatronLMPlugin.set_tensorboard_logging_options": "reads the parser of Megatron-LM's own training script",
    "accel.utils.megatron_lm:": "a step of Accelerate's own engine for Megatron-LM; this one is built differently",
}
"""Why names do not resolve, by a part of them."""

REFUSES_DEFAULTS = {
    "BnbQuantizationConfig": "says that 8 or 4 bits must be chosen",
    "GeneralTracker": "is there to be derived from",
    "MSAMPRecipeKwargs": "says that MS-AMP needs torch 2.1",
    "OffloadedWeightsLoader": "says that there must be weights",
    "TorchTensorParallelPlugin": "says that a size must be above 1, as that of the peer does",
    "DataLoaderAdapter": "passes its arguments on to torch's loader, which needs a data set",
    "SeedableRandomSampler": "passes its arguments on to torch's sampler, which needs a data set",
}
"""Classes that are not built with their documented defaults, and what they do instead."""


def test_what_does_not_resolve_has_a_reason():
    missing = set(NAMES.read_text().split()) - set(RESOLVED.read_text().split())
    unexplained = sorted(name for name in missing if not any(part in name for part in LEFT_OUT))
    assert len(missing) <= 10
    assert not unexplained, f"give a reason in LEFT_OUT for: {', '.join(unexplained[:10])}"


def classes_without_required_arguments():
    found = {}
    for entry in RESOLVED.read_text().split():
        module, _, name = entry.partition(":")
        member = getattr(importlib.import_module(module), name, None)
        if not isinstance(member, type) or name in REFUSES_DEFAULTS or issubclass(member, Enum):
            continue
        try:
            parameters = inspect.signature(member).parameters.values()
        except ValueError:  # an exception, whose signature Python does not know
            continue
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if all(one.default is not one.empty or one.kind in variadic for one in parameters):
            found[name] = member
    return found


def test_classes_are_built_with_their_documented_defaults(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    classes = classes_without_required_arguments()
    assert len(classes) > 20
    for member in classes.values():
        member()


def test_names_gained_are_written_down():
    gained = [entry for entry in NAMES.read_text().split() if resolves(entry)]
    assert gained == RESOLVED.read_text().split(), (
        "more names resolve than are written down; run `python packages/accel/tests/test_interface.py`"
    )


if __name__ == "__main__":
    RESOLVED.write_text("".join(f"{entry}\n" for entry in NAMES.read_text().split() if resolves(entry)))
