"""What the HTTP server makes of bytes, over a real socket and without one."""

import http.client
import json
import socket

import eventlet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.rest import http as wire
from speedwell.controller.rest import server
from speedwell.controller.rest.access import COOKIE, Access
from speedwell.controller.rest.http import Request, response
from speedwell.controller.rest.problems import HttpProblem, NotAuthenticated
from speedwell.fs.identity import bearer
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import CONTROLLER
from tests.unit.controller.in_process import NothingMore
from tests.unit.controller.rest.test_rest_plumbing import GOOD, Served, served

__all__ = ["served"]     # the fixture
ORDER = json.dumps(GOOD).encode()


def _send(served: Served, data: bytes) -> bytes:
    """All that comes until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(data)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        return answer


def _post(body: bytes = ORDER, more: bytes = b"") -> bytes:
    return b"POST /orders HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s" % (
        len(body), more, body)


def test_requests_sent_at_once_are_answered_in_order(served: Served) -> None:
    answer = _send(served, _post() + b"GET /text HTTP/1.1\r\n\r\n" + _post(b"{}") +
                   b"GET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert [piece[:3] for piece in answer.split(b"HTTP/1.1 ")[1:]] == [b"201", b"200", b"422", b"404"]


def test_request_in_single_bytes_is_read(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in _post():
            client.sendall(bytes([byte]))
        assert client.recv(65536).startswith(b"HTTP/1.1 201")


def test_body_that_nobody_wanted_does_not_become_a_request(served: Served) -> None:
    answer = _send(served, b"POST /nothing HTTP/1.1\r\nContent-Length: 24\r\n\r\nGET /secret HTTP/1.1\r\n\r\n"
                           b"GET /text HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert [piece[:3] for piece in answer.split(b"HTTP/1.1 ")[1:]] == [b"404", b"200"]


@pytest.mark.parametrize("head", [
    b"GET /text HTTP/1.0\r\n\r\n",
    b"GET /text HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"POST /nothing HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
])
def test_connection_ends_when_the_request_says_so(served: Served, head: bytes) -> None:
    assert b"Connection: close\r\n" in _send(served, head)


def test_client_that_waits_to_be_asked_for_the_body_is_asked(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(_post(more=b"Expect: 100-continue\r\n").removesuffix(ORDER))
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(ORDER)
        assert client.recv(65536).startswith(b"HTTP/1.1 201")


@pytest.mark.parametrize("head", [
    b"GET /text HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /text HTTP/1.1\r\n folded: x\r\n\r\n",
    b"GET /text HTTP/2\r\n\r\n",
    b"GET  /text HTTP/1.1\r\n\r\n",
    b"POST /orders HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /orders HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /text HTTP/1.1\r\nX: " + b"x" * wire.MAX_HEAD_BYTES + b"\r\n\r\n",
    b"POST /orders HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n",
    b"POST /orders HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: gzip\r\n\r\n",
])
def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_ends(served: Served, head: bytes) -> None:
    answer = _send(served, head)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in answer


def test_whole_url_as_a_proxy_gets_it_is_understood(served: Served) -> None:
    assert b"plain" in _send(served, b"GET http://here/text HTTP/1.1\r\nConnection: close\r\n\r\n")


def test_client_that_breaks_off_leaves_others_alone(served: Served) -> None:
    for data in (b"", b"GET", _post()[:-1], _post()[:20]):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
            client.sendall(data)
    assert served.ask("GET", "/text")[0].status == 200


def test_silent_connection_is_closed_and_a_used_one_is_not(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.5)
    silent = socket.create_connection(("127.0.0.1", served.port), timeout=10)
    used = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    with silent:
        silent.setblocking(False)
        for _ in range(100):
            used.request("GET", "/text")
            assert used.getresponse().read() == b"plain"
            try:
                assert silent.recv(1) == b""
                break
            except BlockingIOError:
                eventlet.sleep(0.1)
        else:
            pytest.fail("the silent connection is still open")
    used.close()


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_any_bytes_are_a_request_or_refused(head: bytes, unread: bytes) -> None:
    try:
        request = Request(head, unread, NothingMore())
        request.parameters()
        request.json_body()
    except HttpProblem as problem:
        assert 400 <= problem.status < 500


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Access:
    authority = Authority.make(tmp_path_factory.mktemp("authority") / "identity")
    authority.ensure([("controller", CONTROLLER)], "127.0.0.1")
    bearer.ensure(authority.directory, "reader")
    return Access(Identity(authority.directory / "controller"), 1e6)


@given(st.sampled_from([b"Authorization", b"Cookie", b"Origin"]), st.sampled_from([b"", b"Bearer ", b"a=b; %s="]),
       st.binary(max_size=80).filter(lambda value: b"\n" not in value and b"\r" not in value))
def test_any_header_proves_nothing(access: Access, name: bytes, begin: bytes, value: bytes) -> None:
    begin = begin.replace(b"%s", COOKIE.encode())
    request = Request(b"GET /v1/health HTTP/1.1\r\n%s: %s%s" % (name, begin, value), b"", NothingMore())
    with pytest.raises(NotAuthenticated):
        access._sender(request)


@given(st.binary(max_size=60), st.lists(st.integers(1, 20)))
def test_chunks_give_the_body_back_whatever_their_sizes(body: bytes, sizes: list[int]) -> None:
    chunks, left = [], body
    for size in [*sizes, len(body)]:
        piece, left = left[:size], left[size:]
        if piece:
            chunks.append(b"%x;note=1\r\n%s\r\n" % (len(piece), piece))
    request = Request(b"POST / HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked",
                      b"".join(chunks) + b"0\r\nTrailer: x\r\n\r\nNEXT", NothingMore())
    assert request.json_body() == body
    assert (request.unread, request.is_last) == (b"NEXT", False)


def test_answer_without_content_has_no_length() -> None:
    assert b"Content-Length" not in response((204, [], b""), is_head=False, is_last=False)
