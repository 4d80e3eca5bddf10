"""Error answers: `application/problem+json` (RFC 9457).

Every ControllerError that a handler raises becomes a problem document; anything else becomes a 500 that tells the
client nothing about the inside.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from speedwell.controller.errors import ControllerError
from speedwell.controller.validation import reason

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:speedwell:problem:"


class FieldError(BaseModel):
    """What is wrong with one field of a request."""

    model_config = ConfigDict(extra="forbid")

    field: str = Field(description="Where, for example `replicas[0].port`; empty for the body as a whole.")
    message: str


class ProblemDetails(BaseModel):
    """The body of every error answer (RFC 9457). Some kinds have more members, for example `dpid`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="Names the kind of problem, for programs.")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(ge=400, le=599, description="The HTTP status again.")
    detail: str = Field(description="What happened this time.")
    errors: list[FieldError] = Field(default=[], description="The fields at fault, if it was the request.")


class HttpProblem(ControllerError):
    """A request that the HTTP plumbing itself refuses; subclasses name the kinds."""

    def __init__(self, detail: str, errors: Sequence[FieldError] = (), headers: Iterable[tuple[str, str]] = (),
                 **extensions: object) -> None:
        super().__init__(detail, **extensions)
        self.errors = list(errors)
        self.headers = list(headers)


class InternalError(HttpProblem):
    """Something unforeseen happened; the log says what."""


class BadRequest(HttpProblem):
    status = 400
    title = "Not an HTTP request that can be understood"


class MalformedJson(HttpProblem):
    status = 400
    title = "The body is not JSON"


class UnknownUrl(HttpProblem):
    status = 404
    title = "Nothing is served at this URL"


class MethodNotAllowed(HttpProblem):
    status = 405
    title = "The URL does not take this method"


class RequestTimedOut(HttpProblem):
    status = 408
    title = "The request did not arrive in time"


class BodyTooLarge(HttpProblem):
    status = 413
    title = "The body is too large"


class UnsupportedMediaType(HttpProblem):
    status = 415
    title = "The body is not declared as JSON"


class NotAuthenticated(HttpProblem):
    status = 401
    title = "The controller does not know who asks"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers=[("WWW-Authenticate", 'Bearer realm="speedwell"')])


class NotAuthorised(HttpProblem):
    status = 403
    title = "Who asks may not ask that"


class TooManyRequests(HttpProblem):
    status = 429
    title = "Who asks has asked too often"


LEADER_HEADER = "Speedwell-Leader"
"""Of an answer of a standby: the URL of the controller that leads, empty if nobody is known to."""


STANDBY_HEADER = "Speedwell-Standby"
"""Of an answer of a leader: the URLs of those that would take over, with commas between them."""


class Standby(HttpProblem):
    status = 503
    title = "Another controller leads"

    def __init__(self, leader: str) -> None:
        super().__init__(f"This controller stands by: ask {leader or 'again, as no other is known to lead'}.",
                         headers=[(LEADER_HEADER, leader), ("Retry-After", "1")], leader=leader)


class InvalidRequest(HttpProblem):
    status = 422
    title = "The request names something that is not acceptable"


def problem_type(problem: ControllerError | type[ControllerError]) -> str:
    """The URI of an exception's (or an exception class's) kind of problem."""
    return TYPE_PREFIX + problem.slug


def describe(error: Exception) -> ProblemDetails:
    """The problem document for `error`; one that is no ControllerError is told as an internal error."""
    if not isinstance(error, ControllerError):
        error = InternalError("The controller failed to answer; its log says why.")
    return ProblemDetails(type=problem_type(error), title=error.title, status=error.status,
                          detail=str(error), errors=getattr(error, "errors", []), **error.extensions)


def answer_to(error: Exception) -> tuple[int, list[tuple[str, str]], bytes]:
    """The answer, as `http.Answer`, that tells of `error`."""
    details = describe(error)
    headers = [("Content-Type", MEDIA_TYPE)]
    if isinstance(error, HttpProblem):
        headers += error.headers
    return details.status, headers, details.model_dump_json().encode()


def field_name(location: Sequence[str | int]) -> str:
    """`("replicas", 0, "port")` as `replicas[0].port`."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def refusal(error: ValidationError) -> HttpProblem:
    """What to answer when pydantic refuses a request."""
    found: list[Any] = error.errors(include_url=False, include_input=False)
    if any(entry["type"] == "json_invalid" for entry in found):
        return MalformedJson(f"The body {reason(found[0])}")
    return invalid([FieldError(field=field_name(entry["loc"]), message=reason(entry)) for entry in found])


def invalid(errors: list[FieldError]) -> InvalidRequest:
    """A refusal whose detail names the first fields and whose `errors` name them all."""
    named = [f"{error.field or 'the body'}: {error.message}" for error in errors[:3]]
    rest = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    return InvalidRequest("; ".join(named) + rest, errors=errors)
