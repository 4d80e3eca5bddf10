"""What the HTTP plumbing does to good and bad requests, over a real socket."""

import http.client
import json
import select
import socket
import threading
from collections.abc import Iterator

import eventlet
import pytest
from pydantic import Field

from speedwell.controller.loops import Loops
from speedwell.controller.rest import PlainText, RestApplication, route
from speedwell.controller.rest.fields import DpidInput, InputModel, Ipv4, OutputModel, Port, parse_dpid
from speedwell.controller.rest.http import MAX_BODY_BYTES
from speedwell.controller.rest.problems import HttpProblem
from speedwell.controller.rest.server import listen, serve


class Address(InputModel):
    host: Ipv4
    port: Port


class Order(InputModel):
    addresses: list[Address] = Field(min_length=1, max_length=3)
    weight: float = 1.0


class Receipt(OutputModel):
    id: str
    addresses: list[Address]


class OutOfStock(HttpProblem):
    status = 409
    slug = "out-of-stock"
    title = "Nothing left"


class Shop:
    def __init__(self) -> None:
        self.orders: list[Order] = []

    @route("POST", "/orders", summary="Order", tag="shop", request=Order, response=Receipt, status=201,
           problems=[OutOfStock])
    def order(self, body: Order) -> Receipt:
        if len(body.addresses) == 3:
            raise OutOfStock("Only two are left.")
        self.orders.append(body)
        return Receipt(id="7", addresses=body.addresses)

    @route("DELETE", "/orders/{id}", summary="Cancel", tag="shop", status=204)
    def cancel(self, id: str) -> None:  # noqa: A002
        pass

    @route("GET", "/switches/{dpid}", summary="A switch", tag="shop", response=list[str])
    def switch(self, dpid: DpidInput) -> list[str]:
        return [dpid]

    @route("GET", "/secret", summary="Fails", tag="shop", response=list[str])
    def secret(self) -> list[str]:
        raise RuntimeError("the password is swordfish")

    @route("GET", "/text", summary="Text", tag="shop", response=PlainText("text/plain; charset=utf-8"))
    def text(self) -> bytes:
        return b"plain"


class Served:
    """A shop behind a real HTTP server in a thread of its own (its hub is that thread's)."""

    def __init__(self) -> None:
        self.shop = Shop()
        application = RestApplication()
        application.register(self.shop)
        self._server = listen("127.0.0.1", 0)
        self.port: int = self._server.getsockname()[1]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(application,), daemon=True)
        self._thread.start()

    def _serve(self, application: RestApplication) -> None:
        serving = eventlet.spawn(serve, self._server, application, Loops())
        while not self._stop.is_set():
            eventlet.sleep(0.02)
        serving.kill()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(15)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def ask(self, method: str, url: str, body: bytes | str | None = None,
            content_type: str | None = "application/json") -> tuple[http.client.HTTPResponse, bytes]:
        connection = self.connection()
        headers = {"Content-Type": content_type} if body is not None and content_type else {}
        connection.request(method, url, body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response, content

    def problem(self, method: str, url: str, body: bytes | str | None = None,
                content_type: str | None = "application/json") -> dict:
        response, content = self.ask(method, url, body, content_type)
        assert response.getheader("Content-Type") == "application/problem+json"
        document = json.loads(content)
        assert document["status"] == response.status
        assert document["type"].startswith("urn:speedwell:problem:")
        assert document["title"] and document["detail"]
        return document


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


GOOD = {"addresses": [{"host": "10.0.0.1", "port": 80}]}


def test_good_request_is_answered_as_declared(served: Served) -> None:
    response, content = served.ask("POST", "/orders", json.dumps(GOOD))
    assert response.status == 201
    assert response.getheader("Location") == "/orders/7"
    assert json.loads(content) == {"id": "7", **GOOD}


def test_empty_answer_has_no_body(served: Served) -> None:
    response, content = served.ask("DELETE", "/orders/7")
    assert (response.status, content) == (204, b"")


def test_plain_text_keeps_its_media_type(served: Served) -> None:
    response, content = served.ask("GET", "/text")
    assert (response.getheader("Content-Type"), content) == ("text/plain; charset=utf-8", b"plain")


@pytest.mark.parametrize(("change", "field"), [
    ({"addresses": []}, "addresses"),
    ({"addresses": [GOOD["addresses"][0]] * 4}, "addresses"),
    ({"addresses": [{"host": "10.0.0.1", "port": 0}]}, "addresses[0].port"),
    ({"addresses": [{"host": "10.0.0.1", "port": 65536}]}, "addresses[0].port"),
    ({"addresses": [{"host": "10.0.0.1", "port": True}]}, "addresses[0].port"),
    ({"addresses": [{"host": "10.0.0.1", "port": "80"}]}, "addresses[0].port"),
    ({"addresses": [{"host": "10.0.0.1", "port": 10 ** 30}]}, "addresses[0].port"),
    ({"addresses": [{"host": "10.0.0.256", "port": 80}]}, "addresses[0].host"),
    ({"addresses": [{"host": "10.0.0.01", "port": 80}]}, "addresses[0].host"),
    ({"addresses": [{"host": "127.0.0.1", "port": 80}]}, "addresses[0].host"),
    ({"addresses": [{"host": "224.0.0.1", "port": 80}]}, "addresses[0].host"),
    ({"addresses": [{"host": "255.255.255.255", "port": 80}]}, "addresses[0].host"),
    ({"addresses": [{"host": "", "port": 80}]}, "addresses[0].host"),
    ({"addresses": [{"host": "10.0.0.1"}]}, "addresses[0].port"),
    ({"addresses": [{"host": "10.0.0.1", "port": 80, "user": 1}]}, "addresses[0].user"),
    ({"addresses": {"host": "10.0.0.1"}}, "addresses"),
    ({"adresses": []}, "adresses"),
    ({"weight": None}, "weight"),
])
def test_refused_field_is_named(served: Served, change: dict, field: str) -> None:
    before = len(served.shop.orders)
    problem = served.problem("POST", "/orders", json.dumps(GOOD | change))
    assert problem["status"] == 422
    assert field in [error["field"] for error in problem["errors"]]
    assert field in problem["detail"]
    assert len(served.shop.orders) == before


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"text"'])
def test_body_that_is_no_object_is_refused_as_a_whole(served: Served, body: bytes) -> None:
    assert served.problem("POST", "/orders", body)["errors"][0]["field"] == ""


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 50_000, b'{"addresses": [}', b"{} {}",
                                  b'{"weight": 1' + b"0" * 5000 + b"}"])
def test_malformed_json_is_told_apart_from_bad_fields(served: Served, body: bytes) -> None:
    problem = served.problem("POST", "/orders", body)
    assert (problem["status"], problem["type"]) == (400, "urn:speedwell:problem:malformed-json")


def test_not_a_number_is_refused(served: Served) -> None:
    body = json.dumps(GOOD | {"weight": float("nan")})
    assert served.problem("POST", "/orders", body)["errors"][0]["field"] == "weight"


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_body_must_be_declared_as_json(served: Served, content_type: str | None) -> None:
    problem = served.problem("POST", "/orders", json.dumps(GOOD).encode(), content_type)
    assert problem["status"] == 415


def test_json_with_a_charset_is_json(served: Served) -> None:
    response, _ = served.ask("POST", "/orders", json.dumps(GOOD), "application/json; charset=utf-8")
    assert response.status == 201


@pytest.mark.parametrize("extra_bytes", [1, 4_000_000])
def test_too_large_body_is_refused_and_the_connection_lives_on(served: Served, extra_bytes: int) -> None:
    connection = served.connection()
    connection.request("POST", "/orders", b" " * (MAX_BODY_BYTES + extra_bytes),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["type"]) == (
        413, "urn:speedwell:problem:body-too-large")
    connection.request("POST", "/orders", json.dumps(GOOD), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 201


def test_absurd_body_is_not_read_to_its_end(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       b"Content-Length: 99999999999\r\n\r\n")
        answer = b""
        piece = b" " * 65536
        sent = 0
        while not answer and sent < 100_000_000:
            readable, writable, _ = select.select([client], [client], [], 10)
            try:
                answer = client.recv(65536) if readable else b""
                sent += client.send(piece) if writable and not answer else 0
            except OSError:
                break
        assert sent < 50_000_000
        assert answer.startswith(b"HTTP/1.1 413") and b"Connection: close" in answer


def test_chunked_body_is_read(served: Served) -> None:
    connection = served.connection()
    text = json.dumps(GOOD).encode()
    connection.request("POST", "/orders", iter([text[:10], text[10:]]), {"Content-Type": "application/json"},
                       encode_chunked=True)
    assert connection.getresponse().status == 201


def test_wrong_chunks_are_a_bad_request(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400")


def test_what_is_not_http_gets_a_problem_document(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(b"this is not a request at all\r\n\r\n")
        assert b"application/problem+json" in client.recv(65536)


def test_unknown_url_is_a_problem(served: Served) -> None:
    problem = served.problem("GET", "/order")
    assert (problem["status"], problem["type"]) == (404, "urn:speedwell:problem:unknown-url")


def test_url_that_is_not_utf8_is_a_bad_request(served: Served) -> None:
    assert served.problem("GET", "/switches/%ff%fe")["status"] == 400


def test_wrong_method_says_which_are_allowed(served: Served) -> None:
    response, _ = served.ask("PUT", "/orders", b"{}")
    assert (response.status, response.getheader("Allow")) == (405, "POST")
    response, _ = served.ask("POST", "/text", b"{}")
    assert (response.status, response.getheader("Allow")) == (405, "GET, HEAD")


def test_query_parameters_are_not_ignored(served: Served) -> None:
    assert served.problem("GET", "/text?verbose=1")["errors"][0]["field"] == "verbose"


def test_head_is_get_without_the_body(served: Served) -> None:
    response, content = served.ask("HEAD", "/text")
    assert (response.status, response.getheader("Content-Length"), content) == (200, "5", b"")


def test_declared_problem_keeps_its_type_and_message(served: Served) -> None:
    problem = served.problem("POST", "/orders", json.dumps({"addresses": [
        {"host": "10.0.0.1", "port": port} for port in (1, 2, 3)]}))
    assert problem == {"type": "urn:speedwell:problem:out-of-stock", "title": "Nothing left", "status": 409,
                       "detail": "Only two are left.", "errors": []}


def test_unforeseen_failure_tells_nothing_of_the_inside(served: Served) -> None:
    response, content = served.ask("GET", "/secret")
    assert response.status == 500
    assert json.loads(content)["type"] == "urn:speedwell:problem:internal-error"
    assert b"swordfish" not in content and b"Traceback" not in content


def test_connection_is_kept_alive_over_refusals(served: Served) -> None:
    connection = served.connection()
    connection.connect()
    before = connection.sock.getsockname()
    for url, status in (("/text", 200), ("/nothing", 404), ("/secret", 500), ("/text", 200)):
        connection.request("GET", url)
        response = connection.getresponse()
        response.read()
        assert response.status == status
        assert connection.sock is not None and connection.sock.getsockname() == before


@pytest.mark.parametrize(("given", "meant"), [
    ("0000000000000010", 16), ("0x10", 16), ("0X10", 16), ("16", 16), ("1f", 31),
    ("ff00000000000001", 0xff00000000000001),
    ("18446744073709551615", (1 << 64) - 1), ("1234567890123456", 0x1234567890123456), ("0", 0), ("010", 10),
])
def test_dpid_is_taken_in_every_form_and_given_as_16_hex_digits(served: Served, given: str, meant: int) -> None:
    _, content = served.ask("GET", f"/switches/{given}")
    assert json.loads(content) == [f"{meant:016x}"]


@pytest.mark.parametrize("given", ["0x", "xyz", "18446744073709551616", "00000000000000001f", "-1", "0x-1", "1_0",
                                   "0x1_0", "%20", "+5", "1.0", "123456789012345678901"])
def test_what_is_no_dpid_is_refused(served: Served, given: str) -> None:
    problem = served.problem("GET", f"/switches/{given}")
    assert (problem["status"], problem["errors"][0]["field"]) == (422, "dpid")


def test_dpid_does_not_take_other_scripts_digits() -> None:
    with pytest.raises(ValueError, match="datapath id"):
        parse_dpid("\u0661\u0662")


def test_route_declared_twice_is_an_error() -> None:
    application = RestApplication()
    application.register(Shop())
    with pytest.raises(ValueError, match="declared twice"):
        application.register(Shop())


def test_every_path_parameter_must_be_annotated() -> None:
    with pytest.raises(TypeError, match="dpid"):
        route("GET", "/x/{dpid}", summary="", tag="")(lambda self, dpid: None)
