"""Matches a request to a declared route, validates, calls, answers."""

import logging
import re
from http import HTTPStatus
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import TypeAdapter, ValidationError

from speedwell.controller.errors import ControllerError
from speedwell.controller.leadership import Leadership
from speedwell.controller.rest import openapi
from speedwell.controller.rest.access import Access
from speedwell.controller.rest.http import Answer, Headers, Pieces, Request
from speedwell.controller.rest.index import VERSION, Endpoint, Index
from speedwell.controller.rest.metrics import HttpMetrics, new_registry
from speedwell.controller.rest.problems import (
    STANDBY_HEADER,
    FieldError,
    HttpProblem,
    MethodNotAllowed,
    Standby,
    UnknownUrl,
    answer_to,
    field_name,
    invalid,
    refusal,
)
from speedwell.controller.rest.routes import PlainText, Route, route, routes_of
from speedwell.controller.validation import reason
from speedwell.fs import tracing

LOG = logging.getLogger(__name__)


class RestApplication:
    """Every route of the controller. Shared by the applications; knows nothing about them."""

    def __init__(self, leadership: Leadership | None = None) -> None:
        self._leadership = leadership or Leadership()
        self._routes: list[Route] = []
        self._by_url: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        self._by_length: dict[int, list[tuple[re.Pattern[str], dict[str, Route]]]] = {}
        """The same by the number of slashes, which a parameter never has."""
        self._encoders: dict[Route, TypeAdapter[Any]] = {}
        self._document: dict[str, Any] | None = None
        self.browser_page: str | None = None
        """The path of what is served at `/` to whoever asks for HTML."""
        self.access: Access | None = None
        """Who may ask; None: everybody."""
        self.metrics = new_registry()
        self._http_metrics = HttpMetrics(self.metrics)
        self.register(self)

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(self._routes)

    def register(self, owner: object) -> None:
        """Serve every method of `owner` that `@route` declares. Raises ValueError if a route is taken."""
        for declaration in routes_of(owner):
            if declaration.path not in self._by_url:
                self._by_url[declaration.path] = declaration.pattern, {}
                self._by_length.setdefault(declaration.path.count("/"), []).append(self._by_url[declaration.path])
            _, methods = self._by_url[declaration.path]
            if declaration.method in methods:
                raise ValueError(f"{declaration.method} {declaration.path} is declared twice")
            methods[declaration.method] = declaration
            self._routes.append(declaration)
            if declaration.response is not None and not isinstance(declaration.response, PlainText):
                self._encoders[declaration] = TypeAdapter(declaration.response)
        self._document = None

    @route("GET", "/", summary="What is served here", tag="controller", response=Index, indent=2)
    def index(self) -> Index:
        methods: dict[str, dict[str, str]] = {}
        for each in self._routes:
            methods.setdefault(each.path, {})[each.method] = each.summary
        return Index(title=openapi.TITLE, version=VERSION, description="/openapi.json",
                     endpoints=[Endpoint(href=path, methods=methods[path]) for path in sorted(methods)])

    @route("GET", "/openapi.json", summary="This interface as an OpenAPI 3.1 document", tag="controller",
           response=dict[str, Any])
    def openapi_document(self) -> dict[str, Any]:
        if self._document is None:
            self._document = openapi.document(self._routes)
        return self._document

    @route("GET", "/metrics", summary="Counters for Prometheus", tag="controller",
           response=PlainText(CONTENT_TYPE_LATEST))
    def prometheus_metrics(self) -> bytes:
        return generate_latest(self.metrics)

    def __call__(self, request: Request) -> Answer:
        try:
            declaration, in_path = self._find(request)
        except HttpProblem as problem:
            declaration, in_path, unknown = None, {}, problem
        labels = _labels(declaration)
        with tracing.serving(" ".join(labels), request.headers.get(tracing.HEADER, "")):
            try:
                if self.access is not None:     # who may not ask is not told either what there is
                    self.access.require(request, declaration)
                if declaration is None:
                    raise unknown
                if declaration.is_of_leader and not self._leadership.leads:
                    raise Standby(self._leadership.leader)
                answer = self._answer(request, declaration, in_path)
                if standbys := self._leadership.standbys:
                    answer[1].append((STANDBY_HEADER, ",".join(standbys)))
            except Exception as error:
                if not isinstance(error, ControllerError):
                    LOG.exception("%s %s failed", request.method, request.path)
                answer = answer_to(error)
        self._http_metrics.answered(*labels, answer[0])
        return answer

    def told(self, path: str) -> bytes | None:
        """What GET of a path and query answers, for an application that passes it on; None if it is refused."""
        request = Request(f"GET {path} HTTP/1.1".encode(), b"", _Inside())
        try:
            body = self._answer(request, *self._find(request))[2]
        except Exception as error:
            if isinstance(error, ControllerError):
                return None
            raise
        return body if isinstance(body, bytes) else None

    def _answer(self, request: Request, declaration: Route, in_path: dict[str, str]) -> Answer:
        arguments = _arguments(declaration, in_path, request.parameters())
        if declaration.request is not None:
            try:
                arguments["body"] = declaration.request.model_validate_json(request.json_body())
            except ValidationError as error:
                raise refusal(error) from None
        result = declaration.handler(**arguments, **{name: getattr(request, name) for name in declaration.takes})
        headers: Headers = []
        if isinstance(declaration.response, PlainText):
            headers += [("Content-Type", declaration.response.media_type), *declaration.response.headers]
            body: bytes | Pieces = result
        elif declaration.response is not None:
            headers.append(("Content-Type", "application/json"))
            body = result if isinstance(result, bytes) else self._encoders[declaration].dump_json(
                result, indent=declaration.indent)
        else:
            headers += result or []
            body = b""
        if declaration.status == HTTPStatus.CREATED:
            headers.append(("Location", f"{declaration.path}/{result.id}"))
        return declaration.status, headers, body

    def _find(self, request: Request) -> tuple[Route, dict[str, str]]:
        """The route, and what its path holds in place of parameters. Raises UnknownUrl, MethodNotAllowed."""
        path = request.path
        if path == "/" and self.browser_page is not None and "text/html" in request.headers.get("accept", ""):
            path = self.browser_page
        for pattern, methods in self._by_length.get(path.count("/"), ()):
            found = pattern.fullmatch(path)
            if found is None:
                continue
            declaration = methods.get("GET" if request.method == "HEAD" else request.method)
            if declaration is None:
                allowed = ", ".join(sorted({*methods, *({"HEAD"} if "GET" in methods else ())}))
                raise MethodNotAllowed(f"{path} takes {allowed}, not {request.method}.",
                                       headers=[("Allow", allowed)])
            return declaration, found.groupdict()
        raise UnknownUrl(f"Nothing is served at {path}; / lists what is.")


class _Inside:
    """Where requests of the controller to itself come from."""

    peer = "127.0.0.1"
    sender = None

    def receive(self) -> bytes:
        return b""

    def send(self, data: bytes) -> None:
        pass


def _labels(declaration: Route | None) -> tuple[str, str]:
    """Method and route for the metrics: never what a client made up, or their number would grow without bound."""
    return (declaration.method, declaration.path) if declaration else ("other", "other")


def _arguments(declaration: Route, in_path: dict[str, str], in_query: list[tuple[str, str]]) -> dict[str, Any]:
    """The handler's parameters. Raises InvalidRequest, naming all that are unknown, given twice or not valid."""
    arguments: dict[str, Any] = {}
    errors: list[FieldError] = []
    given = [(name, value, declaration.parameters) for name, value in in_path.items()]
    given += [(name, value, declaration.query) for name, value in in_query]
    for name, value, adapters in given:
        if name not in adapters:
            errors.append(FieldError(field=name, message="This query parameter is not accepted here"))
        elif name in arguments:
            errors.append(FieldError(field=name, message="It is given twice"))
        else:
            try:
                arguments[name] = adapters[name].validate_python(value)
            except ValidationError as error:
                errors += [FieldError(field=field_name((name, *entry["loc"])), message=reason(entry))
                           for entry in error.errors(include_url=False)]
    if errors:
        raise invalid(errors)
    return arguments
