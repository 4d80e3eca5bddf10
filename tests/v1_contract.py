"""What clients of the controller's /v1 may rely on, a line each, from its OpenAPI document.

    POST /v1/reads takes client_ports[] integer                 it may be sent
    POST /v1/reads takes client_ports[] integer maximum 65535   and may be as high as that
    POST /v1/reads needs client_ports                           and must be sent
    POST /v1/reads 201 gives parts[].number integer             it may be in the answer
    POST /v1/reads 201 gives parts[].number integer minimum 0   and is no lower than that
    POST /v1/reads 201 always parts                             and always is in it
    POST /v1/reads 404 unknown-host                             a status, and the problems that have it

`python -m tests.v1_contract` writes them to docs/reference/v1-contract.txt at a release.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.unit.controller.controller_process import controller_process

RELEASED = Path(__file__).parents[1] / "docs" / "reference" / "v1-contract.txt"
PREFIX = "/v1/"
PROBLEM = "urn:speedwell:problem:"
LOWEST = {"minimum", "exclusiveMinimum", "minLength", "minItems"}
HIGHEST = {"maximum", "exclusiveMaximum", "maxLength", "maxItems"}
ENUM, DEFAULT, CLOSED = "enum", "default", "closed"
LIMITS = (*sorted(LOWEST | HIGHEST), "pattern", "format", "uniqueItems", "const")


def document() -> dict[str, Any]:
    """Of a controller with all its applications."""
    with tempfile.NamedTemporaryFile() as key:
        key.write(b"k" * 32)
        key.flush()
        with controller_process("--insecure", "--coflow-key-file", key.name) as controller:
            served: dict[str, Any] = controller.get("/openapi.json")
            return served


def contract(described: dict[str, Any]) -> set[str]:
    """The lines of an OpenAPI document."""
    schemas = described["components"]["schemas"]
    return {f"{method.upper()} {path} {line}"
            for path, methods in described["paths"].items() if path.startswith(PREFIX)
            for method, operation in methods.items() for line in _operation(operation, schemas)}


class Limit(NamedTuple):
    """What values of one type a field may have, by a keyword of JSON Schema."""

    field: str
    """As in `POST /v1/reads takes client_ports[]`."""
    kind: str
    keyword: str


def breaks(released: Iterable[str], now: Iterable[str]) -> list[str]:
    """What of a contract does not hold any more."""
    (released, limits), (now, limits_now) = _apart(released), _apart(now)
    routes = {_route(line) for line in released}
    fields, answered = ({line.rpartition(" ")[0] for line in released if word in line}
                        for word in (" takes ", " gives "))
    wrong = [f"gone: {line}" for line in released - now if " needs " not in line]
    for line in now - released:
        if " needs " in line and _route(line) in routes:
            wrong.append(f"needed now: {line}")
        if " gives " in line and line.rpartition(" ")[0] in answered:
            wrong.append(f"of another type now: {line}")
    for limit in limits.keys() | limits_now.keys():
        before, after = limits.get(limit, set()), limits_now.get(limit, set())
        if limit.field in fields | answered and not _may_become(limit, before, after):
            wrong.append(f"limited otherwise now: {' '.join(limit)} {_told(before)} -> {_told(after)}")
    return sorted(wrong)


def _may_become(limit: Limit, before: set[str], after: set[str]) -> bool:
    """Whether all that may be sent still may, and means the same; or an answer has nothing that it never had."""
    if limit.keyword == DEFAULT:
        return before <= after
    wide, narrow = (after, before) if " takes " in limit.field else (before, after)
    if not wide or wide == narrow:
        return True
    if not narrow or limit.keyword not in {ENUM, *LOWEST, *HIGHEST}:
        return False
    if limit.keyword == ENUM:
        return wide > narrow
    extreme = min if limit.keyword in LOWEST else max
    furthest: float = extreme(map(json.loads, wide))
    return furthest == extreme(furthest, *map(json.loads, narrow))


def _told(values: set[str]) -> str:
    return " or ".join(sorted(values)) or "none"


def _apart(lines: Iterable[str]) -> tuple[set[str], dict[Limit, set[str]]]:
    """The limits, and the other lines."""
    others: set[str] = set()
    limits: dict[Limit, set[str]] = defaultdict(set)
    for line in lines:
        words = line.split(" ")
        at = 5 if words[2] == "takes" else 6 if words[3:4] == ["gives"] else len(words)
        if len(words) > at:
            limits[Limit(" ".join(words[:at - 1]), words[at - 1], words[at])].add(" ".join(words[at + 1:]))
        else:
            others.add(line)
    return others, limits


def _route(line: str) -> tuple[str, ...]:
    return tuple(line.split()[:2])


def _operation(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        for field in _fields(parameter["schema"], schemas, f"{parameter['in']}:{parameter['name']}", ()):
            yield f"takes {field}"
        if parameter["required"]:
            yield f"needs {parameter['in']}:{parameter['name']}"
    if "requestBody" in operation:
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        yield from (f"takes {field}" for field in _fields(body, schemas, "", ()))
        yield from (f"needs {field}" for field in _required(body, schemas, "", ()))
    for status, answer in operation["responses"].items():
        yield status
        for media_type, content in answer.get("content", {}).items():
            if media_type == "application/json":
                yield from (f"{status} gives {field}" for field in _fields(content["schema"], schemas, "", ())
                            if field.split(" ")[2:3] not in ([DEFAULT], [CLOSED]))
                yield from (f"{status} always {field}" for field in _required(content["schema"], schemas, "", ()))
            else:
                yield f"{status} {media_type}"
            kinds = content["schema"].get("properties", {}).get("type", {}).get("enum", ())
            yield from (f"{status} {kind.removeprefix(PROBLEM)}" for kind in kinds)


def _alternatives(schema: dict[str, Any], schemas: dict[str, Any], above: tuple[str, ...]
                  ) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """The schemas of which one applies, without references; nothing of one that it is part of."""
    reference = schema.get("$ref")
    if reference is not None:
        if reference not in above:
            yield from _alternatives(schemas[reference.rpartition("/")[2]], schemas, (*above, reference))
        return
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    for each in choices:
        yield from _alternatives(each, schemas, above)
    if not choices:
        yield schema, above


def _inside(schema: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, each in schema.get("properties", {}).items():
        yield f"{name}.{key}".lstrip("."), each
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield name + mark, schema[key]


def _fields(schema: dict[str, Any], schemas: dict[str, Any], name: str, above: tuple[str, ...]) -> Iterator[str]:
    if DEFAULT in schema:
        yield f"{name or '.'} * {DEFAULT} {json.dumps(schema[DEFAULT])}"
    for each, under in _alternatives(schema, schemas, above):
        types = each.get("type", "any")
        for kind in [types] if isinstance(types, str) else types:
            yield f"{name or '.'} {kind}"
            yield from (f"{name or '.'} {kind} {limit}" for limit in _limits(each) if kind != "null")
        for inner, field in _inside(each, name):
            yield from _fields(field, schemas, inner, under)


def _limits(schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"{ENUM} {json.dumps(value)}" for value in schema.get(ENUM, ()))
    if schema.get("additionalProperties") is False:
        yield f"{CLOSED} true"
    yield from (f"{keyword} {json.dumps(schema[keyword])}" for keyword in LIMITS if keyword in schema)


def _required(schema: dict[str, Any], schemas: dict[str, Any], name: str, above: tuple[str, ...]) -> Iterator[str]:
    for each, under in _alternatives(schema, schemas, above):
        yield from (f"{name}.{key}".lstrip(".") for key in each.get("required", ()))
        for inner, field in _inside(each, name):
            yield from _required(field, schemas, inner, under)


if __name__ == "__main__":
    RELEASED.write_text("".join(f"{line}\n" for line in sorted(contract(document()))))
