"""Which release this process is of, and what another one wrote."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def release() -> str:
    """As in `speedwell version`; empty where it is not installed."""
    try:
        return version("speedwell")
    except PackageNotFoundError:
        return ""


def read_fields(kind: type[T], document: Mapping[str, Any]) -> T:
    """The dataclass `kind` of a JSON object, without what a later release may have added (docs/upgrades.md). Raises
    TypeError if a field is missing."""
    return kind(**{field.name: document[field.name] for field in fields(kind)      # type: ignore[arg-type]
                   if field.name in document})
