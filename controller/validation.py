"""What pydantic found wrong, in words for whoever gave the value. Every room that validates tells it by this."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "int_parsing": "must be a whole number", "int_type": "must be a whole number",
    "int_from_float": "must be a whole number", "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number", "float_type": "must be a number", "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}", "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}", "less_than_equal": "must be at most {le}",
    "bool_parsing": "must be true or false", "bool_type": "must be true or false",
    "literal_error": "must be {expected}", "enum": "must be {expected}",
    "string_type": "must be a text", "string_unicode": "must be a text in UTF-8",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "ip_any_address": "must be an IP address", "ip_v4_address": "must be an IPv4 address",
    "ip_v6_address": "must be an IPv6 address", "ip_any_network": "must be an IP network",
    "list_type": "must be a list", "tuple_type": "must be a list", "set_type": "must be a list",
    "frozen_set_type": "must be a list", "dict_type": "must be an object", "model_type": "must be an object",
    "model_attributes_type": "must be an object", "dataclass_type": "must be an object",
    "too_short": "must have at least {min_length} entries", "too_long": "must have at most {max_length} entries",
    "json_invalid": "is not JSON: {error}", "json_type": "must be JSON", "none_required": "must be left out",
    "path_type": "must be a path", "uuid_parsing": "must be a UUID", "uuid_type": "must be a UUID",
    "value_error": "{error}",
}


def problems(error: ValidationError) -> list[ErrorDetails]:
    """What is wrong with settings, without the defaults that wait for a setting that is wrong itself."""
    return [problem for problem in error.errors() if problem["type"] != "default_factory_not_called"]


def reason(problem: Mapping[str, Any]) -> str:
    """The message for one of a ValidationError's `errors()`. Those that a room's own validators raised say it
    themselves; for a kind of error that is not known here it is the library's sentence."""
    words = _WORDS.get(problem["type"])
    context = {name: _plain(value) for name, value in problem.get("ctx", {}).items()}
    try:
        return words.format(**context) if words is not None else str(problem["msg"])
    except KeyError:
        return str(problem["msg"])


def _plain(value: Any) -> Any:
    return f"{value:.15g}" if isinstance(value, float) else value
