"""What clients of the controller's /v1 may rely on, a line each, from its OpenAPI document.

    POST /v1/reads takes client_ports[] integer         it may be sent
    POST /v1/reads needs client_ports                   and must be
    POST /v1/reads 201 gives parts[].number integer     it may be in the answer
    POST /v1/reads 201 always parts                     and always is
    POST /v1/reads 404 unknown-host                     a status, and the problems that have it

`python -m tests.v1_contract` writes them to docs/reference/v1-contract.txt at a release.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.unit.controller.controller_process import controller_process

RELEASED = Path(__file__).parents[1] / "docs" / "reference" / "v1-contract.txt"
PREFIX = "/v1/"
PROBLEM = "urn:speedwell:problem:"


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


def breaks(released: Iterable[str], now: Iterable[str]) -> list[str]:
    """What of a contract does not hold any more."""
    released, now = set(released), set(now)
    routes = {_route(line) for line in released}
    answered = {" ".join(line.split()[:5]) for line in released if " gives " in line}
    wrong = [f"gone: {line}" for line in released - now if " needs " not in line]
    for line in now - released:
        if " needs " in line and _route(line) in routes:
            wrong.append(f"needed now: {line}")
        if " gives " in line and " ".join(line.split()[:5]) in answered:
            wrong.append(f"of another type now: {line}")
    return sorted(wrong)


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
                yield from (f"{status} gives {field}" for field in _fields(content["schema"], schemas, "", ()))
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
    for each, under in _alternatives(schema, schemas, above):
        types = each.get("type", "any")
        yield from (f"{name or '.'} {kind}" for kind in ([types] if isinstance(types, str) else types))
        for inner, field in _inside(each, name):
            yield from _fields(field, schemas, inner, under)


def _required(schema: dict[str, Any], schemas: dict[str, Any], name: str, above: tuple[str, ...]) -> Iterator[str]:
    for each, under in _alternatives(schema, schemas, above):
        yield from (f"{name}.{key}".lstrip(".") for key in each.get("required", ()))
        for inner, field in _inside(each, name):
            yield from _required(field, schemas, inner, under)


if __name__ == "__main__":
    RELEASED.write_text("".join(f"{line}\n" for line in sorted(contract(document()))))
