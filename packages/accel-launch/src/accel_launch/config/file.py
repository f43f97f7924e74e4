"""The config file: its place, its keys and what each may hold, and reading it from YAML or JSON."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from accel_launch.messages import warn
from accel_launch.options import OPTIONS
from accel_launch.parsers import assignments
from accel_state.environment import read
from accel_state.environment.parsers import boolean, names
from accel_state.errors import ConfigError, MissingFileError, did_you_mean

# Values that mean "not used"; they are accepted for every key.
INERT_VALUES: tuple[Any, ...] = (None, False, "no", "NO", "", "none", [], {})

# Other spellings, and what they are called here.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "dynamo_backend": "dynamo_config.dynamo_backend",
        "env": "tpu_env",
        "fp8_config.amax_compute_algo": "fp8_config.amax_compute_algorithm",
        "fp8_config.amax_history_len": "fp8_config.amax_history_length",
        "fsdp_config.fsdp_backward_prefetch": "fsdp_config.fsdp_backward_prefetch_policy",
    }
)
_OF_SETTINGS = {setting.config_key: setting for setting in OPTIONS if setting.config_key}
# Beside them, keys that are no setting of a launch.
_KEYS = {*_OF_SETTINGS, *ALIASES} | {
    "additional_args",
    "command_file",
    "commands",
    "compute_environment",
    "distributed_type",
    "fp16",
}
# Values that leave the choice to the next in line.
_UNSET_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"compute_environment": ("LOCAL_MACHINE",)}
    | {key: setting.launch.unset_values for key, setting in _OF_SETTINGS.items()}
)

# Keys outside sections, with further values that ask for nothing as long as one machine is used.
PLAIN_KEYS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {key: _UNSET_VALUES.get(key, ()) for key in sorted(_KEYS) if "." not in key}
)

# The keys of each section.
SECTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        section: frozenset(key.partition(".")[2] for key in _KEYS if key.startswith(f"{section}."))
        for section in sorted({key.partition(".")[0] for key in _KEYS if "." in key})
    }
)

# Keys whose value may be a list, and those whose value may hold keys of its own.
_LISTS = {"commands", "fp8_config.override_linear_precision"} | {
    key for key, setting in _OF_SETTINGS.items() if setting.parse in (names, assignments)
}
LIST_KEYS = frozenset(_LISTS | {alias for alias, key in ALIASES.items() if key in _LISTS})
MAPPING_KEYS = frozenset({"additional_args"})
_MAX_CHARACTERS = 2**18
FILE_NAMES = ("default_config.yaml", "default_config.yml", "default_config.json")


def config_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's config file.

    It is ``accelerate`` in ``$HF_HOME`` if that is set, else ``huggingface/accelerate`` in
    ``$XDG_CACHE_HOME`` (``~/.cache`` if that is not set).
    """
    home: str | None = read("hf_home", environ)
    if home is not None:
        return Path(home).expanduser() / "accelerate"
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "accelerate"


def default_config_file(environ: Mapping[str, str]) -> Path | None:
    """Return the config file of this user: the first that exists of `FILE_NAMES`, or None."""
    candidates = (config_folder(environ) / name for name in FILE_NAMES)
    return next((path for path in candidates if path.is_file()), None)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a config file, flat: keys inside a section are written ``section.key``."""

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def find_config(path: str | None, *, environ: Mapping[str, str]) -> ConfigFile:
    """Read the file at ``path``, or else the user's own, or else none.

    Raises:
        ConfigError: If ``path`` does not exist, or the file cannot be understood.
    """
    if path is not None:
        return read_config(Path(path).expanduser())
    default = default_config_file(environ)
    return ConfigFile() if default is None else read_config(default)


def read_config(path: Path) -> ConfigFile:
    """Read one config file; its name decides whether it is JSON (``.json``) or YAML (anything else).

    Raises:
        ConfigError: If it cannot be read or parsed, is not a mapping, or holds an unknown key or a wrong value.
    """
    values: dict[str, Any] = {}
    for key, value in read_document(path).items():
        _check_known(key, (*PLAIN_KEYS, *SECTIONS), where=f"the config file `{path}`")
        if key in SECTIONS:
            values |= _section(key, value, path=path)
        else:
            values[key] = value
    for key, value in values.items():
        problem = problem_of(key, value)
        if problem is not None:
            raise ConfigError(f"`{key}` in the config file `{path}` cannot be used: {problem}.")
    return ConfigFile(path, MappingProxyType(_with_current_keys(values, path=path)))


def read_document(path: Path) -> dict[str, Any]:
    """Return the content of a config file as it is, with nothing checked but that it is a mapping.

    Raises:
        ConfigError: If it cannot be read or parsed, or is not a mapping.
    """
    try:
        return read_mapping(path, what=f"The config file `{path}`")
    except FileNotFoundError:
        raise MissingFileError(
            f"The config file `{path}` does not exist. Make it with `accel config --config_file {path}`, or leave the "
            "flag out."
        ) from None


def read_mapping(path: Path, *, what: str) -> dict[str, Any]:
    """Return what a file of ``key: value`` lines holds, in JSON or YAML by its name; ``what`` names it in errors.

    Raises:
        ConfigError: If it cannot be read or parsed, or is not a mapping.
    """
    content = _parse(path, read_text_file(path, what=what), what)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{what} must hold `key: value` lines, but holds {_kind_of(content)}.")
    return content


def _with_current_keys(values: Mapping[str, Any], *, path: Path) -> dict[str, Any]:
    """Return ``values`` with older keys replaced; the switch `fp16` yields to `mixed_precision`."""
    current = {ALIASES.get(key, key): value for key, value in values.items()}
    if _is_on(current.pop("fp16", None), key="fp16", path=path):
        current.setdefault("mixed_precision", "fp16")
    return current


def _is_on(value: Any, *, key: str, path: Path) -> bool:
    text = "" if value is None else str(value)
    try:
        return bool(text.strip() and boolean(text))
    except ValueError:
        raise ConfigError(
            f"`{key}` in the config file `{path}` is `{text}`, but it must be {boolean.accepts}."
        ) from None


def _section(section: str, content: Any, *, path: Path) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"`{section}` in the config file `{path}` must hold `key: value` lines, "
            f"but holds {_kind_of(content)}."
        )
    for key in content:
        _check_known(key, SECTIONS[section], where=f"`{section}` in the config file `{path}`")
    return {f"{section}.{key}": value for key, value in content.items()}


def _kind_of(content: Any) -> str:
    return "a list" if isinstance(content, list) else f"only `{' '.join(str(content).split())[:80]}`"


def _check_known(key: Any, known: Iterable[str], *, where: str) -> None:
    if key not in (known := sorted(known)):
        shown = " ".join(str(key)[:80].encode(errors="backslashreplace").decode().split())
        raise ConfigError(f"Unknown key `{shown}` in {where}.{did_you_mean(shown, known)}")


def read_text_file(path: Path, *, what: str) -> str:
    """Return the text of a small file; ``what`` names it in errors.

    Raises:
        ConfigError: If it cannot be read, is larger than 256 KiB, a named pipe, or no text.
    """
    try:
        # The pipes of a shell's `<(…)` have a writer, and no real path.
        if Path(os.path.realpath(path)).is_fifo():
            raise OSError(errno.EINVAL, "it is a pipe")
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
        if len(text) > _MAX_CHARACTERS:
            raise OSError(errno.EFBIG, f"it is larger than {_MAX_CHARACTERS >> 10} KiB")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        kind = MissingFileError if isinstance(error, FileNotFoundError) else ConfigError
        raise kind(f"{what} cannot be read: {why}. Check the file, its path and its permissions.") from error
    return text


def _parse(path: Path, text: str, what: str) -> Any:
    kind, parse = ("JSON", _from_json) if path.suffix == ".json" else ("YAML", _from_yaml)
    repeated: list[tuple[dict[Any, Any], str]] = []
    try:
        content = parse(text, repeated)
        for mapping, key in repeated:
            if mapping is not content:
                raise ValueError(f"a section has the key `{key}` twice")
            warn(f"{what} has the key `{key}` twice; the last counts. Remove the others.")
        return content
    except RecursionError:
        raise ConfigError(
            f"{what} is nested too deeply. Write `key: value` lines, and sections of such lines."
        ) from None
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{what} is not valid {kind}: {problem}. Correct it there.") from error


def _from_json(text: str, repeated: list[tuple[dict[Any, Any], str]]) -> Any:
    def mapping(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        return _noted(dict(pairs), [key for key, _ in pairs], repeated)

    return json.loads(text, object_pairs_hook=mapping)


def _from_yaml(text: str, repeated: list[tuple[dict[Any, Any], str]]) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Notes repeated keys, which YAML forbids and the package accepts."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        # Before `flatten_mapping` adds the keys of `<<`, which those of the section may repeat.
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        loader.flatten_mapping(node)
        return _noted(dict(loader.construct_mapping(node, deep=True)), keys, repeated)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader)  # noqa: S506 (it is a SafeLoader)
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = f" in line {place.line + 1}, column {place.column + 1}" if place is not None else ""
        raise ValueError(f"{error.problem or error.context}{where}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _noted(
    mapping: dict[Any, Any], keys: Iterable[str], repeated: list[tuple[dict[Any, Any], str]]
) -> dict[Any, Any]:
    repeated += [(mapping, key[:80]) for key, number in Counter(keys).items() if number > 1]
    return mapping


def is_unset(key: str, value: Any) -> bool:
    """Whether a key with this value has no effect on the setting, as if it were missing."""
    return value is None or _is_one_of(value, PLAIN_KEYS.get(key, ()))


def is_inert(key: str, value: Any) -> bool:
    """Whether a key with this value asks for nothing."""
    return is_unset(key, value) or _is_one_of(value, INERT_VALUES)


def _is_one_of(value: Any, candidates: Iterable[Any]) -> bool:
    # `0 == False`, yet a rank of 0 and a switch that is off are different things: compare the types too.
    return any(value == candidate and type(value) is type(candidate) for candidate in candidates)


# Far more than any real file; a YAML file of a few lines can stand for billions of values through its aliases.
_MOST_VALUES = 10_000


def problem_of(key: str, value: Any) -> str | None:
    """Return what is wrong with the kind of a key's value, None if nothing is.

    Only the kind is looked at: a scalar, a list of them for keys that hold several, a mapping for those that hold
    one. The setting checks the value.
    """
    if isinstance(value, dict) and value and key not in MAPPING_KEYS:
        return "it must be a single value, but it holds keys of its own"
    if isinstance(value, list) and value and key not in LIST_KEYS:
        return "it must be a single value, but it holds a list"
    for place, leaf in enumerate(_leaves(value)):
        if place == _MOST_VALUES:
            return f"it holds more than {_MOST_VALUES} values"
        problem = _problem_of_leaf(leaf)
        if problem:
            return problem
    return None


def _leaves(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            waiting += [*current.keys(), *current.values()]
            yield None
        elif isinstance(current, list):
            waiting += current
            yield None
        else:
            yield current


def _problem_of_leaf(leaf: Any) -> str | None:
    if leaf is None or isinstance(leaf, (bool, int, float)):
        return None
    if not isinstance(leaf, str):
        return f"it must be text or a number, but it is read as a {type(leaf).__name__}; put it in quotes"
    try:
        is_fit = b"\0" not in os.fsencode(leaf)
    except UnicodeEncodeError:
        is_fit = False
    return None if is_fit else "it holds a character that no command line or variable can carry"
