"""One request through all processes: its id in their logs and, if wanted, its spans for OpenTelemetry.

Every request of a client carries a W3C `traceparent` (https://www.w3.org/TR/trace-context/): the id of the request,
that of the span which asks, and whether spans are recorded. It goes in the head of a frame, as metadata of gRPC, as a
header of HTTP. Nothing of OpenTelemetry is imported before `start` finds a collector in the environment.
"""

import atexit
import contextlib
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, Token, copy_context
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from speedwell.fs.errors import SpeedwellError

log = logging.getLogger(__name__)

HEADER = "traceparent"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DISABLED = "OTEL_SDK_DISABLED"
_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

LAST_SECONDS = 1.0
"""How long the end of a process waits for the collector."""

P = ParamSpec("P")
R = TypeVar("R")

_current: ContextVar[str] = ContextVar("traceparent", default="")
_numbers = random.Random()
os.register_at_fork(after_in_child=_numbers.seed)
_tracer: Any = None
_last: threading.Thread | None = None
_ending = threading.Event()


def current() -> str:
    """The `traceparent` of the request that is carried out here; empty where there is none."""
    return _current.get()


def request_id() -> str:
    """The id of that request, 32 hexadecimal digits, as logs and messages show it; empty where there is none."""
    return _current.get()[3:35]


def carried(work: Callable[P, R]) -> Callable[P, R]:
    """`work` for another thread, as part of the same request. For one call."""
    return partial(copy_context().run, work)


def run_within(traceparent: str, work: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    """Do `work` as `with Within(traceparent)`, for what costs little more than that."""
    token = _current.set(traceparent)
    try:
        return work(*arguments, **options)
    except SpeedwellError as error:
        error.request_id = error.request_id or traceparent[3:35]
        raise
    finally:
        _current.reset(token)


class Within:
    """What is done inside is part of the request of `traceparent`, and so are the errors that come out."""

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def __enter__(self) -> None:
        self._token: Token[str] = _current.set(self.traceparent)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        _current.reset(self._token)
        if isinstance(error, SpeedwellError) and not error.request_id:
            error.request_id = self.traceparent[3:35]


class Span(Within):
    """A part of a request, from its making to `end`; the first one makes the request's id. With `with` all inside
    belongs to it, and it ends with that."""

    def __init__(self, name: str, parent: str = "", *, serves: bool = False) -> None:
        """Of the current request unless there is a `parent`, which another process sent if this one `serves` it."""
        parent = parent or _current.get()
        self._name = name
        self._began = time.perf_counter()
        self._recorded = None if _tracer is None else _record(name, parent, serves)
        super().__init__(parent or _new_request() if self._recorded is None else _traceparent(self._recorded))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.end(error)
        super().__exit__(kind, error, traceback)

    def end(self, error: BaseException | None = None) -> None:
        """It is done, or failed with `error`. Safe to call again."""
        name, self._name = self._name, ""
        if not name:
            return
        if log.isEnabledFor(logging.DEBUG):
            with Within(self.traceparent):
                log.debug("%s %s after %.1f ms", name, f"failed ({error})" if error else "ended",
                          (time.perf_counter() - self._began) * 1e3)
        if self._recorded is not None:
            if error is not None:
                from opentelemetry.trace import StatusCode
                self._recorded.set_status(StatusCode.ERROR, str(error))
            self._recorded.end()


def serving(name: str, traceparent: str) -> contextlib.AbstractContextManager[None]:
    """The span of a request that came with that `traceparent`; nothing where that is malformed, or there is none."""
    if not _FORM.fullmatch(traceparent):
        return contextlib.nullcontext()
    return Span(name, traceparent, serves=True) if _is_told() else Within(traceparent)


def asking(name: str, work: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    """Do `work`, a small request, which is one of its own unless it is part of another one."""
    traceparent = _current.get()
    if traceparent or not _is_told():
        return run_within(traceparent or _new_request(), work, *arguments, **options)
    with Span(name):
        return work(*arguments, **options)


def _is_told() -> bool:
    """Whether anybody hears of spans."""
    return _tracer is not None or log.isEnabledFor(logging.DEBUG)


def start(service: str, instance: str = "") -> None:
    """Send the spans of this process to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, if it does, over HTTP.
    `instance` tells processes of one `service` apart (default: host and pid). To be called after a fork."""
    global _tracer, _last
    if not any(map(os.environ.get, ENDPOINTS)) or os.environ.get(DISABLED, "").strip().lower() == "true":
        return      # the spans of an SDK that is disabled have no ids
    try:
        provider = _provider(service, instance or f"{socket.gethostname()}:{os.getpid()}")
    except ModuleNotFoundError as error:
        from speedwell.fs.command_line import missing  # which is in need of this

        log.warning("no traces are sent: %s", missing(error.name, "traces"))
        return
    except ValueError as error:
        log.warning("no traces are sent: OpenTelemetry refuses the value of an OTEL_… variable: %s", error)
        return
    _tracer, _last = provider.get_tracer("speedwell"), threading.Thread(target=_end, args=(provider,), daemon=True)
    _last.start()
    atexit.register(stop)


def _provider(service: str, instance: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False, resource=Resource.create(
        {"service.name": service, "service.instance.id": instance}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def stop() -> None:
    """Send what is left, as far as the collector takes it within LAST_SECONDS. At its end a process does so by itself
    if it does what is registered with `atexit`."""
    _ending.set()
    if _last is not None:
        _last.join(LAST_SECONDS)


def _end(provider: Any) -> None:
    _ending.wait()
    provider.shutdown()


def _new_request() -> str:
    number = f"{_numbers.getrandbits(192):048x}"
    return f"00-{number[:32]}-{number[32:]}-00"


def _traceparent(recorded: Any) -> str:
    context = recorded.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _record(name: str, parent: str, serves: bool) -> Any:
    """Without a parent it belongs to the span of the application that uses this library, if that has one."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    above = None if not parent else trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext(
        int(parent[3:35], 16), int(parent[36:52], 16), serves, trace.TraceFlags(int(parent[53:], 16)))), Context())
    return _tracer.start_span(name, above, trace.SpanKind.SERVER if serves else trace.SpanKind.INTERNAL)
