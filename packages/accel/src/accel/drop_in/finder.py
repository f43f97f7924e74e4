"""Imports of `accelerate`, and queries of its version. Imports little: it may run at every start of Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from accel_state.errors import StateError
from accel_state.versions import require_no_accelerate

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

THEIRS, OURS = "accelerate", "accel"
INTERFACE_VERSION = "1.15.0"
"""The version of Accelerate whose interface is offered."""


class DropInFinder(MetaPathFinder):
    """Finds accel and its modules in place of `accelerate` and those below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of `accelerate` or one of its modules, None for modules that accel does not have."""
        if fullname == THEIRS:
            require_no_accelerate()
            return ModuleSpec(fullname, _Alias(_Root(THEIRS)), origin=__file__, is_package=True)
        if not fullname.startswith(f"{THEIRS}."):
            return None
        name = OURS + fullname.removeprefix(THEIRS)
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name == name:
                return None
            raise
        origin, is_package = getattr(module, "__file__", None), hasattr(module, "__path__")
        return ModuleSpec(fullname, _Alias(module), origin=origin, is_package=is_package)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Yield the distribution `accelerate` if it, or any distribution, is requested."""
        if context.name is None or context.name.lower() == THEIRS:
            from importlib.metadata import PathDistribution
            from pathlib import Path

            yield PathDistribution(Path(__file__).with_name("metadata"))


class _Alias(Loader):
    """Loads a module under a second name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        if (
            self._spec is not None
        ):  # it was executed under its real name; the import has just set the other spec
            module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code to run as a script, for ``python -m``."""
        spec = self._spec
        code: CodeType | None = None if spec is None else spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        return code


class _Root(ModuleType):
    """The module `accelerate`: attributes other than the version are read from and set on accel."""

    __version__ = INTERFACE_VERSION

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(import_module(OURS), name)
        except AttributeError:
            raise AttributeError(
                f"module `{THEIRS}` has no attribute `{name}`", name=name, obj=self
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(import_module(OURS), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(import_module(OURS), name)

    def __dir__(self) -> list[str]:
        return dir(import_module(OURS))


def activate() -> None:
    """Make `import accelerate` import accel in this process; a second call does nothing.

    Raises:
        StateError: If Accelerate is installed, or has been imported.
    """
    if is_active():
        return
    require_no_accelerate()
    loaded = sys.modules.get(THEIRS)
    if loaded is not None:
        raise StateError(
            f"`{THEIRS}` was imported from `{getattr(loaded, '__file__', None)}` before `accel.drop_in`. Import "
            "`accel.drop_in` first."
        )
    sys.meta_path.insert(0, DropInFinder())


def deactivate() -> None:
    """Make later imports of `accelerate` fail again; names that were imported from it stay valid."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, DropInFinder)]
    for name in list(_modules()):
        del sys.modules[name]  # else later imports would return these, past the finder


def is_active() -> bool:
    """Whether `accelerate` means accel in this process."""
    return any(isinstance(finder, DropInFinder) for finder in sys.meta_path)


def _modules() -> Iterator[str]:
    return (name for name in sys.modules if name == THEIRS or name.startswith(f"{THEIRS}."))
