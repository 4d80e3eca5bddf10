"""How the applications of the controller find each other, and what they share: by type."""

from __future__ import annotations

from typing import Any, TypeVar

from speedwell.controller.errors import MissingService, ServiceTaken

T = TypeVar("T")


class Services:
    """One object for each type that is asked for: a class, or a protocol that says what the one who asks needs.

    What all share is there from the beginning. An application provides itself and more in its constructor, and gets
    other applications from `start` on, when all are made: in which order they stand in the list does not matter.
    """

    def __init__(self, *shared: Any) -> None:
        """`shared` are provided under their own types."""
        self._services: dict[type, Any] = {}
        for service in shared:
            self.provide(type(service), service)

    def provide(self, kind: type[T], service: T) -> None:
        """From now on `get(kind)` gives this one. Raises ServiceTaken if there is one already."""
        if kind in self._services:
            raise ServiceTaken(f"{_name_of(type(service))} cannot provide {_name_of(kind)}: "
                               f"{_name_of(type(self._services[kind]))} does already")
        self._services[kind] = service

    def get(self, kind: type[T]) -> T:
        """What was provided as `kind`. Raises MissingService."""
        try:
            service: T = self._services[kind]
        except KeyError:
            raise MissingService(f"nothing provides {_name_of(kind)}: is its application in the list, and was it "
                                 "asked for before all were made?") from None
        return service


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
