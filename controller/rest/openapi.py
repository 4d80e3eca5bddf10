"""The OpenAPI 3.1 document, generated from the declared routes."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from speedwell.controller.errors import ControllerError
from speedwell.controller.rest.index import VERSION
from speedwell.controller.rest.problems import MEDIA_TYPE, ProblemDetails, problem_type
from speedwell.controller.rest.routes import PlainText, Route

TITLE = "Speedwell controller"
_REFERENCE = "#/components/schemas/{model}"


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Describe `routes`: each operation's parameters, body, answer, and every problem it may answer with."""
    routes = list(routes)
    schemas, definitions = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": VERSION,
            "description": "Replica and path selection for the filesystem, and the network it is made on. "
                           "Any URL that is not listed answers 404, any other method 405, both as problem "
                           "documents. GET URLs take HEAD as well.",
        },
        "jsonSchemaDialect": GenerateJsonSchema.schema_dialect,
        "paths": {path: paths[path] for path in sorted(paths)},
        "components": {"schemas": definitions},
    }


def _schemas(routes: list[Route]) -> tuple[dict[tuple[Any, str], Any], dict[str, Any]]:
    inputs: list[tuple[Any, Any, TypeAdapter[Any]]] = [
        (ProblemDetails, "serialization", TypeAdapter(ProblemDetails))]
    for route in routes:
        if route.request is not None:
            inputs.append(((route, "request"), "validation", TypeAdapter(route.request)))
        if route.response is not None and not isinstance(route.response, PlainText):
            inputs.append(((route, "response"), "serialization", TypeAdapter(route.response)))
        inputs += [((route, name), "validation", adapter)
                   for name, adapter in (*route.parameters.items(), *route.query.items())]
    found, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)
    return {key: schema for (key, _), schema in found.items()}, definitions.get("$defs", {})


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "tags": [route.tag],
    }
    if route.description:
        operation["description"] = route.description
    parameters = [{"name": name, "in": place, "required": place == "path", "schema": schemas[route, name]}
                  for place, names in (("path", route.parameters), ("query", route.query)) for name in names]
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        operation["requestBody"] = {"required": True,
                                    "content": {"application/json": {"schema": schemas[route, "request"]}}}
    operation["responses"] = {str(route.status): _success(route, schemas), **_problems(route)}
    return operation


def _success(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if isinstance(route.response, PlainText):
        answer["content"] = {route.response.media_type: {"schema": {"type": "string"}}}
    elif route.response is not None:
        answer["content"] = {"application/json": {"schema": schemas[route, "response"]}}
    if route.status == HTTPStatus.CREATED:
        answer["headers"] = {"Location": {"description": "Where the new resource is.", "required": True,
                                          "schema": {"type": "string"}}}
    return answer


def _problems(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[type[ControllerError]]] = {}
    for problem in route.all_problems:
        by_status.setdefault(problem.status, []).append(problem)
    return {
        str(status): {
            "description": " or ".join(dict.fromkeys(problem.title for problem in kinds)),
            "content": {MEDIA_TYPE: {"schema": {
                "allOf": [{"$ref": _REFERENCE.format(model=ProblemDetails.__name__)}],
                "properties": {"status": {"const": status},
                               "type": {"enum": sorted({problem_type(kind) for kind in kinds})}},
            }}},
        }
        for status, kinds in sorted(by_status.items())
    }
