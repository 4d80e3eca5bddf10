"""An OpenTelemetry collector as tests have it: what processes send to it over HTTP or HTTPS."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    trace: bytes
    id: bytes
    parent: bytes
    name: str
    process: str


def is_whole(trace: list[Span], expected: set[tuple[str, str]]) -> bool:
    """Whether these spans and all parents have arrived: processes send theirs when they like."""
    ids = {span.id for span in trace}
    return expected <= {(span.name, span.process) for span in trace} and all(
        not span.parent or span.parent in ids for span in trace)


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as an OpenTelemetry collector does; over TLS with `certificate`, a file that it
    makes. `host` is where they reach it."""

    def __init__(self, host: str = "127.0.0.1", certificate: Path | None = None) -> None:
        self.spans: list[Span] = []
        super().__init__(("0.0.0.0", 0), _Export)
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{host}:{self.server_port}",
                            "OTEL_BSP_SCHEDULE_DELAY": "200"}
        if certificate is not None:
            _sign_for(host, certificate)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{host}:{self.server_port}",
                                 "OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate)}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def tell(self, patch: pytest.MonkeyPatch) -> None:
        """Have all processes that this one starts send here. A bundle of `requests` would win over it."""
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            patch.delenv(name, raising=False)
        for name, value in self.environment.items():
            patch.setenv(name, value)

    def trace_with(self, name: str, *processes: str) -> list[Span] | None:
        """The spans of a trace that begins with `name` and came through `processes`."""
        for root in [span for span in self.spans if span.name == name and not span.parent]:
            trace = [span for span in self.spans if span.trace == root.trace]
            if {span.process for span in trace} >= set(processes):
                return trace
        return None

    def seen(self) -> str:
        return "\n".join(f"{span.trace.hex()} {span.parent.hex():16} {span.id.hex()} {span.process} {span.name}"
                         for span in self.spans)


class _Export(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            words = {each.key: each.value.string_value for each in resource.resource.attributes}
            process = f"{words['service.name']} {words['service.instance.id']}".removesuffix(
                f" {socket.gethostname()}:{words['service.instance.id'].rpartition(':')[2]}")
            self.server.spans += [Span(span.trace_id, span.span_id, span.parent_span_id, span.name, process)
                                  for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _sign_for(host: str, file: Path) -> None:
    """A key and a certificate that it signs itself."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "1", "-subj", "/CN=collector", "-addext", f"subjectAltName=IP:{host}", "-keyout", file,
                    "-out", f"{file}.certificate"], check=True, capture_output=True)
    with file.open("a") as both:
        both.write(Path(f"{file}.certificate").read_text())
