"""Wrappers that also have the attributes of the wrapped object."""

from __future__ import annotations

from typing import Any, ClassVar


class Delegating:
    """Read attributes that an object lacks from the object that it wraps."""

    #: The attribute with the wrapped object.
    _wrapped_in: ClassVar[str]

    def __getattr__(self, name: str) -> Any:
        # Without the wrapped object, as in an instance that is being unpickled, the lookup below would recurse forever.
        if name.startswith("__") or self._wrapped_in not in self.__dict__:
            raise AttributeError(
                f"`{type(self).__name__}` object has no attribute `{name}`.", name=name, obj=self
            )
        return getattr(self.__dict__[self._wrapped_in], name)
