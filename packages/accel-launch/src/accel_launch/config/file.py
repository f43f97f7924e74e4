"""Where the config file lies, and reading it: YAML or JSON in, checked keys out."""

from __future__ import annotations

import errno
import json
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from accel_launch.config.keys import ALIASES, PLAIN_KEYS, SECTIONS, problem_of
from accel_launch.messages import warn
from accel_state.environment import read
from accel_state.environment.parsers import boolean
from accel_state.errors import ConfigError, MissingFileError, did_you_mean

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
    content = _parse(path, _text_of(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"The config file `{path}` must hold `key: value` lines, but holds {_kind_of(content)}."
        )
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
    names = sorted(known)
    if key not in names:
        shown = " ".join(str(key)[:80].encode(errors="backslashreplace").decode().split())
        raise ConfigError(f"Unknown key `{shown}` in {where}.{did_you_mean(shown, names)}")


def read_text_file(path: Path) -> str:
    """Return the text of a small file; one that is larger than 256 KiB, or a pipe, is an `OSError`."""
    if stat.S_ISFIFO(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "it is a pipe")
    with path.open(encoding="utf-8") as file:
        text = file.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_CHARACTERS >> 10} KiB")
    return text


def _text_of(path: Path) -> str:
    try:
        return read_text_file(path)
    except FileNotFoundError:
        raise MissingFileError(
            f"The config file `{path}` does not exist. Make it with `accel config --config_file {path}`, or leave the "
            "flag out."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"The config file `{path}` cannot be read: {error.strerror}. Check its path and permissions."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"The config file `{path}` cannot be read: it is no text in UTF-8. Save it as UTF-8."
        ) from error


def _parse(path: Path, text: str) -> Any:
    kind, parse = ("JSON", _from_json) if path.suffix == ".json" else ("YAML", _from_yaml)
    try:
        return parse(text)
    except RecursionError:
        raise ConfigError(
            f"The config file `{path}` is nested too deeply. "
            "Write `key: value` lines, and sections of such lines."
        ) from None
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(
            f"The config file `{path}` is not valid {kind}: {problem}. Correct it there."
        ) from error


def _from_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_last_of_each)


def _from_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Warns of duplicate keys, which YAML forbids and the package accepts."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        loader.flatten_mapping(node)
        _last_of_each([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        return dict(loader.construct_mapping(node, deep=True))

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader)  # noqa: S506 (it is a SafeLoader)
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = f" in line {place.line + 1}, column {place.column + 1}" if place is not None else ""
        raise ValueError(f"{error.problem or error.context}{where}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _last_of_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for key, number in Counter(key for key, _ in pairs).items():
        if number > 1:
            warn(
                f"The config file has the key {key[:80]!r} {number} times; the last counts. Remove the others."
            )
    return dict(pairs)
