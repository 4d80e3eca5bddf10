"""A request's id and spans within one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from speedwell.fs import tracing
from speedwell.fs.errors import InternalError, SpeedwellError
from speedwell.fs.tracing import Span, Within

ROOT = Path(__file__).parents[3]
TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-00")
GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_first_span_makes_the_id_and_those_inside_share_it() -> None:
    assert tracing.request_id() == ""
    with Span("write") as _:
        first = tracing.request_id()
        assert TRACEPARENT.fullmatch(tracing.current())
        with Span("append"):
            assert tracing.request_id() == first
    assert tracing.request_id() == ""
    with Span("write"):
        assert tracing.request_id() != first


def test_a_request_that_another_process_sent_goes_on_here() -> None:
    with tracing.serving("Lookup", GIVEN):
        assert tracing.current() == GIVEN


@pytest.mark.parametrize("malformed", [
    "", "x", GIVEN.upper(), GIVEN[:-1], GIVEN + "\n", f"00-{'0' * 32}-00f067aa0ba902b7-01",
    f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", "ff" + GIVEN[2:]])
def test_a_malformed_traceparent_is_left_out(malformed: str) -> None:
    with tracing.serving("Lookup", malformed):
        assert tracing.current() == ""


def test_an_error_has_the_id_of_the_innermost_request() -> None:
    with pytest.raises(SpeedwellError) as raised, Span("read"), Within(GIVEN):
        raise InternalError("no")
    assert raised.value.request_id == GIVEN[3:35]


def test_work_within_a_request_and_its_errors_have_its_id() -> None:
    def fail(message: str) -> None:
        raise InternalError(message)

    assert tracing.run_within(GIVEN, tracing.current) == GIVEN
    with pytest.raises(SpeedwellError) as raised:
        tracing.run_within(GIVEN, fail, "no")
    assert raised.value.request_id == GIVEN[3:35]
    assert tracing.current() == ""


def test_a_small_request_is_one_of_its_own_unless_it_is_part_of_another_one() -> None:
    first, second = (tracing.asking("Lookup", tracing.current) for _ in range(2))
    assert TRACEPARENT.fullmatch(first) and TRACEPARENT.fullmatch(second) and first != second
    with Within(GIVEN):
        assert tracing.asking("Lookup", tracing.current) == GIVEN
    assert tracing.current() == ""


def test_what_is_carried_to_another_thread_belongs_to_the_request() -> None:
    seen: list[str] = []
    with Span("read"):
        own = tracing.current()
        threads = [threading.Thread(target=work) for work in (
            tracing.carried(lambda: seen.append(tracing.current())), lambda: seen.append(tracing.current()))]
    for thread in threads:
        thread.start()
        thread.join()
    assert seen == [own, ""]


def test_the_current_span_of_an_application_is_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ended))
    tracer = provider.get_tracer("application")
    monkeypatch.setattr(tracing, "_tracer", tracer)
    with tracer.start_as_current_span("job"), Span("read"), Span("append"):
        pass
    append, read, job = ended.get_finished_spans()
    assert append.parent is not None and append.parent.span_id == read.get_span_context().span_id
    assert read.parent is not None and read.parent.span_id == job.get_span_context().span_id


def test_a_failed_span_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ended))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("application"))
    with pytest.raises(InternalError), Span("read"):
        raise InternalError("no disk")
    [span] = ended.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no disk")


def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    code = ("import sys; from speedwell.fs import tracing; from speedwell.fs.client import Client;"
            "tracing.start('test');"
            "tracing.Span('read').end(); print([each for each in sys.modules if 'opentelemetry' in each])")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          env=environment, cwd=ROOT)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("variable", "value", "said"), [
    ("OTEL_SDK_DISABLED", "true", ""),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "no traces are sent: OpenTelemetry refuses"),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1", "no traces are sent: OpenTelemetry refuses")])
def test_where_opentelemetry_does_not_run_requests_have_ids(
        monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, value)
    code = ("from speedwell.fs import logs, tracing; logs.configure('info'); tracing.start('test')\n"
            "with tracing.Span('read'): print(tracing.request_id())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          cwd=ROOT)
    assert re.fullmatch("(?!0{32})[0-9a-f]{32}\n", done.stdout)
    assert said in done.stderr and bool(said) == bool(done.stderr), done.stderr


def test_a_log_of_json_names_the_request_too(monkeypatch: pytest.MonkeyPatch) -> None:
    code = ("import logging; from speedwell.fs import logs, tracing; logs.configure('info')\n"
            "with tracing.Span('read') as _: logging.warning('%s is slow', 'd0')")
    monkeypatch.setenv("SPEEDWELL_LOG_FORMAT", "json")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          cwd=ROOT)
    entry = json.loads(done.stderr)
    assert entry["message"] == "d0 is slow" and entry["level"] == "warning"
    assert re.fullmatch("[0-9a-f]{32}", entry["request"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])


def test_a_log_of_requests_has_nothing_of_what_libraries_tell_their_makers() -> None:
    code = ("import logging; from speedwell.fs import logs; logs.configure('debug')\n"
            "for name in ('numba.core', 'speedwell.fs.tracing'):\n"
            "    for level in (logging.DEBUG, logging.INFO): logging.getLogger(name).log(level, 'said')")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert [line.split()[2:4] for line in told.splitlines()] == [
        ["INFO", "numba.core:"], ["DEBUG", "speedwell.fs.tracing:"], ["INFO", "speedwell.fs.tracing:"]]
