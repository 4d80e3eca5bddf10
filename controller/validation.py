"""What pydantic found wrong, in words for whoever gave the value."""

from collections.abc import Mapping
from typing import Any


def reason(problem: Mapping[str, Any]) -> str:
    """The message of one of a ValidationError's `errors()`, without the library's own "Value error, "."""
    return str(problem["msg"]).removeprefix("Value error, ")
