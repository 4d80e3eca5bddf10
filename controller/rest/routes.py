"""One declaration per route; serving it, refusing bad requests and documenting it all read that declaration."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, TypeAdapter

from speedwell.controller.errors import ControllerError
from speedwell.controller.rest.problems import (
    BadRequest,
    BodyTooLarge,
    InternalError,
    InvalidRequest,
    MalformedJson,
    NotAuthenticated,
    NotAuthorised,
    RequestTimedOut,
    Standby,
    TooManyRequests,
    UnsupportedMediaType,
)
from speedwell.controller.rest.roles import EVERYBODY, NOBODY_ELSE, READER, Roles

Handler = TypeVar("Handler", bound=Callable[..., Any])
_ATTRIBUTE = "_speedwell_route"
OF_STANDBY = frozenset({"/v1/health", "/v1/session"})
"""Of `/v1`, what a standby answers itself."""
_PARAMETER = re.compile(r"{(\w+)}")


@dataclass(frozen=True)
class PlainText:
    """A response that is not JSON: `media_type` says what it is, `headers` come beside. The handler returns bytes, or
    `Pieces` that are sent one by one as they come."""

    media_type: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Route:
    """One method of one URL. `handler` takes the path's parameters and those of the query by name, and `body` if
    `request` is declared. The query's may be left out. `roles` may ask beside operators, who may everything. `takes`
    names what the handler takes besides: `peer`, the address of who asks, and `sender`, who that is by a certificate.
    A JSON answer with an `indent` is spread over lines, for people."""

    method: str
    path: str
    summary: str
    description: str
    tag: str
    request: type[BaseModel] | None
    response: Any
    status: int
    problems: tuple[type[ControllerError], ...]
    handler: Callable[..., Any]
    parameters: Mapping[str, Any]
    query: Mapping[str, Any]
    roles: Roles | None
    takes: tuple[str, ...] = ()
    indent: int | None = None

    @property
    def is_of_leader(self) -> bool:
        """Whether a controller that stands by refuses it."""
        return self.path.startswith("/v1") and self.path not in OF_STANDBY

    @property
    def all_problems(self) -> tuple[type[ControllerError], ...]:
        """Declared problems and those that the plumbing itself answers."""
        common: list[type[ControllerError]] = [BadRequest, InvalidRequest, InternalError]
        if self.request is not None:
            common += [MalformedJson, RequestTimedOut, BodyTooLarge, UnsupportedMediaType]
        if self.roles is not EVERYBODY:
            common += [NotAuthenticated, NotAuthorised, TooManyRequests]
        if self.is_of_leader:
            common += [Standby]
        return (*self.problems, *common)

    @property
    def pattern(self) -> re.Pattern[str]:
        pieces = _PARAMETER.split(self.path)
        return re.compile("".join(re.escape(piece) if index % 2 == 0 else f"(?P<{piece}>[^/]+)"
                                  for index, piece in enumerate(pieces)))


def route(method: str, path: str, *, summary: str, tag: str, response: Any = None,
          request: type[BaseModel] | None = None, status: int = 200,
          problems: Sequence[type[ControllerError]] = (), query: Sequence[str] = (),
          roles: Roles | None | EllipsisType = ..., indent: int | None = None) -> Callable[[Handler], Handler]:
    """Declare a method as the handler of `method path`.

    `path` holds parameters as `{name}`, `query` names those that may follow a question mark, for which the handler
    has defaults; the handler's annotation of each says how it is validated. The handler returns what `response`
    (a pydantic model, a list of one, `PlainText`, or None for an empty answer) describes, or its JSON. `problems` are
    the exception classes the handler may raise; its docstring becomes the description. `roles` may ask beside
    operators, or EVERYBODY; left out, readers may GET.
    """

    def declare(handler: Handler) -> Handler:
        hints = get_type_hints(handler, include_extras=True)

        def adapters(names: Sequence[str]) -> dict[str, TypeAdapter[Any]]:
            for name in names:
                if name not in hints:
                    raise TypeError(f"{handler.__qualname__} does not annotate the parameter {name!r} of {path}")
            return {name: TypeAdapter(hints[name]) for name in names}

        allowed = ((READER,) if method == "GET" else NOBODY_ELSE) if isinstance(roles, EllipsisType) else roles
        declaration = Route(method, path, summary, " ".join((handler.__doc__ or "").split()), tag, request,
                            response, status, tuple(problems), handler, adapters(_PARAMETER.findall(path)),
                            adapters(query), allowed, tuple(hints.keys() & {"peer", "sender"}), indent)
        setattr(handler, _ATTRIBUTE, declaration)
        return handler

    return declare


def routes_of(owner: object) -> list[Route]:
    """The routes declared on `owner`'s methods, with the handlers bound to it, in the order of their paths."""
    declared = {name: member for kind in type(owner).__mro__ for name, member in vars(kind).items()
                if hasattr(member, _ATTRIBUTE)}
    bound = [replace(getattr(member, _ATTRIBUTE), handler=getattr(owner, name))
             for name, member in declared.items()]
    return sorted(bound, key=lambda declaration: (declaration.path, declaration.method))
