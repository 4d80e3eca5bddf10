"""A controller with an identity: who is let in over REST, with what, and what the others are told."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from speedwell.controller.rest.roles import EVERYBODY
from speedwell.fs.identity import bearer, files
from speedwell.fs.identity.authority import VALIDITY_SECONDS, Authority
from speedwell.fs.identity.bundle import LOOK_SECONDS
from speedwell.fs.identity.roles import (
    CONTROLLER,
    DATASERVER,
    MOUNT,
    NAMESERVER,
    OPERATOR,
    READER,
    ROLES,
    SCHEDULER,
)
from speedwell.fs.rates import REFUSED_BURST, REFUSED_PER_SECOND
from tests.unit.controller.controller_process import Process, controller_process
from tests.waiting import wait_until

HANDSHAKES = 1000
READ = (READER,)
READS = (MOUNT, DATASERVER)
NOBODY_ELSE: tuple[str, ...] = ()
ALLOWED: dict[str, tuple[str, ...] | None] = {
    "GET /": READ,
    "GET /metrics": READ,
    "GET /openapi.json": READ,
    "GET /page": EVERYBODY,
    "GET /page/{name}.css": EVERYBODY,
    "GET /page/{name}.js": EVERYBODY,
    "POST /v1/session": EVERYBODY,
    "DELETE /v1/session": EVERYBODY,
    "GET /v1.0/topology/hosts": READ,
    "GET /v1.0/topology/hosts/{dpid}": READ,
    "GET /v1.0/topology/links": READ,
    "GET /v1.0/topology/links/{dpid}": READ,
    "GET /v1.0/topology/switches": READ,
    "GET /v1.0/topology/switches/{dpid}": READ,
    "GET /v1/coflow-flows": READ,
    "GET /v1/coflows": READ,
    "GET /v1/coflows/{id}": READ,
    "DELETE /v1/coflows/{id}": NOBODY_ELSE,
    "GET /v1/entries": READ,
    "GET /v1/events": READ,
    "GET /v1/events/history": READ,
    "GET /v1/flows": READ,
    "GET /v1/health": (READER, *READS, NAMESERVER, SCHEDULER),
    "GET /v1/hosts": READ,
    "GET /v1/links": READ,
    "GET /v1/metadata/blocks": READ,
    "GET /v1/metadata/owners": READ,
    "PUT /v1/metadata/owners": (NAMESERVER,),
    "GET /v1/metadata/servers": READ,
    "POST /v1/metadata/servers": (DATASERVER,),
    "DELETE /v1/metadata/servers/{host}": NOBODY_ELSE,
    "GET /v1/metadata/tables/{dpid}": READ,
    "GET /v1/meters": READ,
    "GET /v1/network": (READER, SCHEDULER),
    "GET /v1/placements": READ,
    "POST /v1/placements": (NAMESERVER,),
    "DELETE /v1/placements/{id}": (NAMESERVER,),
    "GET /v1/queues": READ,
    "GET /v1/reads": READ,
    "POST /v1/reads": READS,
    "GET /v1/reads/{id}": (READER, *READS),
    "DELETE /v1/reads/{id}": READS,
    "DELETE /v1/reads/{id}/parts/{number}": READS,
    "GET /v1/storage": READ,
    "PUT /v1/storage/nameservers": (NAMESERVER,),
    "GET /v1/timeslices/classes": (*READ, SCHEDULER),
    "GET /v1/timeslices/pairs": READ,
    "POST /v1/timeslices/pairs": (SCHEDULER,),
    "GET /v1/timeslices/turns": READ,
    "PUT /v1/timeslices/turns": (SCHEDULER,),
    "GET /v1/switches": READ,
    "GET /v1/switches/{dpid}": READ,
    "GET /v1/switches/{dpid}/entries": READ,
}
"""Which roles may ask beside operators, who may everything."""


class Site:
    """A controller and its authority; there is an identity for each role, named as the role."""

    def __init__(self, directory: Path, authority: Authority, process: Process) -> None:
        self.directory = directory
        self.authority = authority
        self.process = process
        self.host, self.port = process.rest

    def connection(self, identity: Path | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
                   ) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority.directory / files.AUTHORITY))
        context.maximum_version = version
        if identity is not None:
            context.load_cert_chain(identity / files.CERTIFICATE)
        return http.client.HTTPSConnection(self.host, self.port, timeout=20, context=context)

    def as_role(self, role: str) -> http.client.HTTPSConnection:
        return self.connection(self.authority.directory / role)

    def ask(self, connection: http.client.HTTPSConnection, url: str = "/v1/health", method: str = "GET",
            body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
        given = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, url, None if body is None else json.dumps(body), {**given, **headers})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status in (401, 403):
            assert answer.headers["Content-Type"] == "application/problem+json"
        return answer.status, json.loads(text) if text else {}

    def by_token(self, token: str, url: str = "/v1/health", method: str = "GET") -> int:
        with closing(self.connection()) as connection:
            return self.ask(connection, url, method, Authorization=f"Bearer {token}")[0]

    def metric(self, start: str) -> float:
        with closing(self.as_role(OPERATOR)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    authority = Authority.make(directory / "identity")
    authority.ensure([(role, role) for role in ROLES], "127.0.0.1")
    key = directory / "key"
    key.write_bytes(b"a key of good length")
    hosts = directory / "hosts"
    hosts.write_text(f"10.0.0.7 {DATASERVER}\n10.0.0.8 other\n")
    with controller_process("--identity", str(authority.directory / CONTROLLER), "--coflow-key-file", str(key),
                            "--hosts-file", str(hosts),
                            "--coflow-port", "0") as process:
        yield Site(directory, authority, process)


def _refused(connection: http.client.HTTPSConnection) -> str:
    """Why a connection did not come to an answer."""
    with closing(connection), pytest.raises(OSError) as failed:
        connection.request("GET", "/v1/health")
        connection.getresponse()
    return str(failed.value)


def test_every_route_has_a_line_in_the_table(site: Site) -> None:
    with closing(site.as_role(READER)) as connection:
        paths = site.ask(connection, "/openapi.json")[1]["paths"]
    assert {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods} == ALLOWED.keys()


@pytest.mark.parametrize("role", [*ROLES, None])
def test_a_role_gets_through_where_the_table_says_so(site: Site, role: str | None) -> None:
    with closing(site.connection() if role is None else site.as_role(role)) as connection:
        for route, allowed in ALLOWED.items():
            method, path = route.split(" ")
            status, answer = site.ask(connection, path, "HEAD" if method == "GET" else method)
            may = allowed is EVERYBODY or role == OPERATOR or role in (allowed or ())
            assert (status in (401, 403)) == (not may), (role, route, status)
            assert status != 401 or role is None or "/v1/session" in path
            if method != "GET" and not may and role is not None:
                assert f"The {role} {role} may not ask for {route}" in answer["detail"]


@pytest.mark.parametrize("role", [READER, MOUNT, DATASERVER, NAMESERVER, SCHEDULER])
def test_a_client_of_several_controllers_may_ask_which_one_leads(site: Site, role: str) -> None:
    with closing(site.as_role(role)) as connection:
        status, health = site.ask(connection)
    assert (status, health["status"], health["converged"]) == (200, "empty", False)


def test_a_dataserver_announces_the_metadata_server_of_its_own_host_alone(site: Site) -> None:
    site.authority.ensure([("10.0.0.3", DATASERVER)])
    for who, host, status, says in ((DATASERVER, "10.0.0.7", 404, "no host with the address"),
                                    (DATASERVER, "10.0.0.8", 403, "dataserver may not speak for other"),
                                    (DATASERVER, "10.0.0.9", 403, "may not speak for 10.0.0.9"),
                                    ("10.0.0.3", "10.0.0.3", 404, "no host with the address"),
                                    (OPERATOR, "10.0.0.9", 404, "no host with the address")):
        with closing(site.as_role(who)) as connection:
            answered, answer = site.ask(connection, "/v1/metadata/servers", "POST",
                                        {"host": host, "port": 9000, "id": "it"})
        assert answered == status and says in answer["detail"], answer


def test_a_stranger_is_told_what_to_show_and_not_what_there_is(site: Site) -> None:
    refused = site.metric('speedwell_http_requests_total{method="other"')
    with closing(site.connection()) as connection:
        status, known = site.ask(connection, "/v1/coflows/1", "DELETE")
        assert status == 401
        assert "speedwell identity token" in known["detail"]
        for url, method in (("/nothing", "GET"), ("/v1/health", "DELETE"), ("/v1/reads?a=b", "GET")):
            assert site.ask(connection, url, method) == (401, known)
    assert site.metric('speedwell_http_requests_total{method="other"') > refused


def test_a_certificate_of_another_installation_is_refused(site: Site, tmp_path: Path) -> None:
    foreign = Authority.make(tmp_path / "foreign")
    foreign.ensure([("me", OPERATOR)])
    refused = site.metric("speedwell_rest_refused_connections_total")
    assert "unknown ca" in _refused(site.connection(tmp_path / "foreign/me"))
    assert site.metric("speedwell_rest_refused_connections_total") == refused + 1


def test_an_expired_certificate_is_refused(site: Site) -> None:
    past = Authority(site.authority.directory, lambda: time.time() - VALIDITY_SECONDS - 10)
    assert "expired" in _refused(site.connection(past.issue("former", OPERATOR)))


def test_a_revoked_certificate_ends_with_the_request_on_its_way(site: Site) -> None:
    place = site.authority.issue("soon-gone", READER)
    with closing(site.connection(place)) as connection:
        assert site.ask(connection)[0] == 200
        site.authority.revoke("soon-gone")
        wait_until(lambda: site.ask(connection)[0] == 401, 20 * LOOK_SECONDS, "it is not refused")
        assert "was revoked" in site.ask(connection)[1]["detail"]
    with pytest.raises(OSError):
        site.ask(site.connection(place))


def test_tls_1_2_is_refused(site: Site) -> None:
    assert "protocol version" in _refused(site.connection(version=ssl.TLSVersion.TLSv1_2)).lower().replace("_", " ")


def test_plain_http_is_told_to_come_with_tls(site: Site) -> None:
    with closing(http.client.HTTPConnection(site.host, site.port, timeout=20)) as connection:
        connection.request("GET", "/v1/health")
        answer = connection.getresponse()
        assert answer.status == 400
        assert "https://" in json.loads(answer.read())["detail"]


def test_a_token_is_good_until_it_is_revoked_or_replaced(site: Site) -> None:
    place = bearer.issue(site.authority.directory, "grafana")
    token = place.read_text().strip()
    assert place.stat().st_mode & 0o777 == 0o600
    assert all(token not in path.read_text(errors="replace") for path in site.authority.directory.rglob("*")
               if path.is_file() and path != place)
    wait_until(lambda: site.by_token(token) == 200, 20 * LOOK_SECONDS, "the token is not known")
    assert site.by_token(token, "/v1/coflows/1", "DELETE") == 403
    assert site.by_token(token[:-1] + ("A" if token[-1] != "A" else "B")) == 401
    assert site.by_token("") == 401
    other = bearer.issue(site.authority.directory, "grafana", OPERATOR).read_text().strip()
    wait_until(lambda: site.by_token(other) == 200, 20 * LOOK_SECONDS, "the new token is not known")
    assert site.by_token(token) == 401
    assert bearer.revoke(site.authority.directory, "grafana")
    wait_until(lambda: site.by_token(other) == 401, 20 * LOOK_SECONDS, "it is not revoked")
    assert not place.exists()


@pytest.mark.parametrize("by_token", [False, True])
def test_who_is_revoked_sees_no_more_of_a_stream(site: Site, by_token: bool) -> None:
    directory = site.authority.directory
    if by_token:
        token = bearer.issue(directory, "viewer").read_text().strip()
        wait_until(lambda: site.by_token(token) == 200, 20 * LOOK_SECONDS, "the token is not known")
        connection, headers = site.connection(), {"Authorization": f"Bearer {token}"}
    else:
        connection, headers = site.connection(site.authority.issue("viewer", READER)), {}
    with closing(connection):
        connection.request("GET", "/v1/events", headers=headers)
        stream = connection.getresponse()
        assert stream.status == 200 and stream.readline() == b"retry: 1000\n"
        if by_token:
            assert bearer.revoke(directory, "viewer")
        else:
            site.authority.revoke("viewer")
        deadline = time.monotonic() + 20
        while stream.readline():
            assert time.monotonic() < deadline, "it is told more"


def test_a_token_ends(site: Site) -> None:
    tokens = [bearer.issue(site.authority.directory, name, validity_seconds=seconds).read_text().strip()
              for name, seconds in (("over", -1.0), ("good", 1000.0))]
    wait_until(lambda: site.by_token(tokens[1]) == 200, 20 * LOOK_SECONDS, "the token is not known")
    assert site.by_token(tokens[0]) == 401


def test_a_browser_keeps_its_token_where_no_script_and_no_other_site_gets_it(site: Site) -> None:
    token = bearer.issue(site.authority.directory, "browser", OPERATOR).read_text().strip()
    wait_until(lambda: site.by_token(token) == 200, 20 * LOOK_SECONDS, "the token is not known")
    with closing(site.connection()) as connection:
        connection.request("POST", "/v1/session", json.dumps({"token": token}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        cookie, *rules = answer.headers["Set-Cookie"].split("; ")
        assert answer.status == 204
        assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= set(rules)
        assert site.ask(connection, Cookie=cookie)[0] == 200
        own = {"Cookie": cookie, "Origin": f"https://{site.host}:{site.port}"}
        assert site.ask(connection, "/v1/coflows/1", "DELETE", **own)[0] not in (401, 403)
        assert site.ask(connection, "/v1/coflows/1", "DELETE", **(own | {"Origin": "https://evil.example"}))[0] == 401
        assert site.ask(connection, "/v1/session", "POST", {"token": "wrong"})[0] == 401
        connection.request("POST", "/v1/session", f"token={token}",
                           {"Content-Type": "application/x-www-form-urlencoded"})
        assert connection.getresponse().status == 415


def test_who_is_refused_again_and_again_is_answered_late(site: Site) -> None:
    begin = time.monotonic()
    with closing(site.as_role("etcd")) as connection:
        assert all(site.ask(connection)[0] == 403 for _ in range(round(REFUSED_BURST + 2 * REFUSED_PER_SECOND)))
    assert time.monotonic() - begin > 1.9


def test_who_asks_too_often_is_told_when_to_come_again_and_others_are_served(site: Site, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("rest_requests_per_second = 1\n")
    with controller_process("--identity", str(site.authority.directory / CONTROLLER),
                            "--config", str(config)) as process:
        strict = Site(tmp_path, site.authority, process)
        with closing(strict.as_role(READER)) as connection, closing(strict.as_role(OPERATOR)) as other:
            connection.connect()
            for _ in range(200):
                connection.request("GET", "/v1/health")
                answer = connection.getresponse()
                said = json.loads(answer.read())
                if answer.status == 429:
                    break
            assert int(answer.headers["Retry-After"]) == 1
            assert said["type"] == "urn:speedwell:problem:too-many-requests"
            assert said["detail"] == "The reader reader may ask 1 times a second."
            assert strict.ask(other)[0] == 200
            wait_until(lambda: strict.ask(connection)[0] == 200, 20, "it is refused for ever")


def test_a_thousand_slow_handshakes_keep_nobody_out(site: Site) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    slow = []
    try:
        for number in range(HANDSHAKES):
            slow.append(socket.create_connection((site.host, site.port), 20, ("127.0.0.2", 0)))
            slow[-1].send(b"\x16\x03" if number % 2 else b"\x16")
        with closing(site.as_role(READER)) as connection:
            assert site.ask(connection)[0] == 200
    finally:
        for each in slow:
            each.close()


def test_connections_that_are_reset_are_counted_and_leave_nothing(site: Site) -> None:
    descriptors = Path(f"/proc/{site.process.pid}/fd")
    before, refused = len(list(descriptors.iterdir())), site.metric("speedwell_rest_refused_connections_total")
    for number in range(100):
        with socket.create_connection((site.host, site.port), 20, ("127.0.0.3", 0)) as connection:
            connection.send(b"\x16" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: site.metric("speedwell_rest_refused_connections_total") >= refused + 100, 20,
               "they are not counted")
    wait_until(lambda: len(list(descriptors.iterdir())) <= before, 20, "they are still open")
    assert "Traceback" not in site.process.log


def test_a_renewed_certificate_is_shown_from_then_on(site: Site) -> None:
    def shown() -> str:
        with closing(site.as_role(READER)) as connection:
            connection.connect()
            return str(connection.sock.getpeercert()["serialNumber"])

    before = shown()
    site.authority.renew([CONTROLLER])
    wait_until(lambda: shown() != before, 20 * LOOK_SECONDS, "the old certificate is shown")


def test_an_identity_of_another_role_does_not_start(site: Site) -> None:
    with pytest.raises(AssertionError, match="is the identity of the switch switch, not of a controller"), \
            controller_process("--identity", str(site.authority.directory / "switch")):
        pass
