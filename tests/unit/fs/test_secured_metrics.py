"""`/metrics` of a process with an identity, beyond loopback: who reads it, and who does not."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import Counter

from speedwell.fs import metrics
from speedwell.fs.identity import files, secured_http
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import DATASERVER, MOUNT, NAMESERVER, OPERATOR, READER
from tests.waiting import wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority.make(tmp_path / "identity")
    authority.ensure([(role, role) for role in (NAMESERVER, DATASERVER, MOUNT, OPERATOR, READER)])
    return authority


@pytest.fixture(params=[NAMESERVER, DATASERVER, MOUNT])
def port(authority: Authority, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """Where a process of that role answers."""
    told = Counter("speedwell_told", "One.", registry=None)
    url = metrics.serve("0.0.0.0:0", [told], tmp_path / "identity" / request.param)
    assert url.startswith("https://0.0.0.0:")
    yield int(url.removesuffix("/metrics").rpartition(":")[2])


def ask(port: int, shown: Path | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> tuple[int, str, str]:
    """Status, reason and page, asked for as Prometheus does: HTTP/2 offered, the server's name not looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = newest
    context.set_alpn_protocols(["h2", "http/1.1"])
    if shown is not None:
        context.load_cert_chain(shown / files.CERTIFICATE)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.reason, answer.read().decode()
    finally:
        connection.close()


def test_only_readers_and_operators_of_the_installation_read_them(port: int, authority: Authority,
                                                                  tmp_path: Path) -> None:
    identities = tmp_path / "identity"
    for role in (READER, OPERATOR):
        status, _, page = ask(port, identities / role)
        assert status == 200 and "speedwell_told_total 0.0" in page
    for role in (MOUNT, DATASERVER, NAMESERVER):
        status, why, page = ask(port, identities / role)
        assert (status, why) == (403, f"the {role} {role} may not read metrics: that is for reader, operator")
        assert "speedwell_told" not in page
    status, why, page = ask(port, None)
    assert (status, why) == (403, "here only clients with a certificate are served") and "speedwell_told" not in page
    Authority.make(tmp_path / "other").ensure([(READER, READER)])
    with pytest.raises(OSError):
        ask(port, tmp_path / "other" / READER)
    with pytest.raises(OSError):
        ask(port, identities / READER, ssl.TLSVersion.TLSv1_2)
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with pytest.raises((OSError, http.client.HTTPException)):
        plain.request("GET", "/metrics")
        plain.getresponse()
    authority.revoke(READER)
    revoked = 403, "the certificate of the reader reader was revoked"
    wait_until(lambda: ask(port, identities / READER)[:2] == revoked, 30, "who was revoked is still served")
    assert ask(port, identities / OPERATOR)[0] == 200


@pytest.mark.parametrize("port", [DATASERVER], indirect=True)
def test_a_reader_is_answered_beside_strangers_that_say_nothing(
        port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with ExitStack() as cleanup:
        for _ in range(2 * secured_http.CONNECTIONS):
            cleanup.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        assert ask(port, tmp_path / "identity" / READER)[0] == 200
    told = [record for record in caplog.records if "was not served" in record.message]
    assert len(told) <= 5, "strangers do not fill the log"


def test_who_has_an_identity_answers_in_plain_on_loopback(authority: Authority, tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert metrics.serve(f"{host}:0", [], tmp_path / "identity" / DATASERVER).startswith(f"http://{host}:")
