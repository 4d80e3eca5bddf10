"""Errors keep their kind and message."""

import socket
import threading

import pytest

from speedwell.fs import errors
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import (
    FileClosed,
    InvalidArgument,
    InvalidName,
    NameserverUnavailable,
    NameTooLong,
    NotSupported,
    SpeedwellError,
)
from speedwell.fs.nameserver.service import grpc_errors as rpc

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SpeedwellError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_arrives_as_what_it_was(kind: type[SpeedwellError]) -> None:
    _, details, metadata = rpc.status_of(kind("/a is so"))
    arrived = errors.named(dict(metadata)[rpc.ERROR_NAME_KEY], details)
    assert type(arrived) is kind
    assert str(arrived) == "/a is so"


def test_a_call_that_nobody_answered_names_the_address() -> None:
    with MetadataClient("127.0.0.1:1", call_timeout_seconds=0.1) as client, \
            pytest.raises(NameserverUnavailable, match=r"127.0.0.1:1 did not answer"):
        client.lookup("/")


def test_what_is_no_nameserver_is_named_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        def answer() -> None:
            with stranger.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        with MetadataClient(address) as client, pytest.raises(NotSupported, match=f"{address} is no nameserver"):
            client.lookup("/")
        thread.join()


def test_an_error_unknown_here_is_an_internal_one() -> None:
    assert type(errors.named("FromTheFuture", "broken")) is errors.InternalError


@pytest.mark.parametrize("address", ["", "here", ":7400", "here:", "here:0", "here:65536", "here:x"])
def test_a_malformed_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidArgument, match="nameserver"):
        MetadataClient(address)


class TestBeforeAnythingIsSent:
    """These clients have no nameserver: an answer at all means that nothing was sent."""

    @pytest.fixture
    def client(self) -> MetadataClient:
        return MetadataClient("127.0.0.1:1", call_timeout_seconds=60)

    @pytest.mark.parametrize("path", ["", "relative", "/a/../b", "/a\0b"])
    def test_bad_paths_are_refused(self, client: MetadataClient, path: str) -> None:
        for use in (client.lookup, client.list, client.create, client.mkdir, client.remove, client.rmdir,
                    client.truncate, client.set_attributes):
            with pytest.raises(InvalidName, match=r"^path: "):
                use(path)
        with pytest.raises(InvalidName, match=r"^destination: "):
            client.rename("/a", path)

    def test_long_names_are_refused(self, client: MetadataClient) -> None:
        with pytest.raises(NameTooLong):
            client.create("/" + "n" * 256)

    @pytest.mark.parametrize(("field", "value"), [("mode", -1), ("uid", 2**40), ("replication", -3),
                                                  ("chunk_size", -1), ("chunk_size", 2**64)])
    def test_numbers_that_fit_no_field_are_refused(self, client: MetadataClient, field: str, value: int) -> None:
        with pytest.raises(InvalidArgument, match=f"^{field}: "):
            client.create("/f", **{field: value})  # type: ignore[arg-type]

    def test_a_closed_client_says_so(self, client: MetadataClient) -> None:
        client.close()
        with pytest.raises(FileClosed):
            client.lookup("/a")


@pytest.mark.parametrize(("error", "words"), [
    (OSError(111, "Connection refused"), "Connection refused"), (OSError(), "OSError"),
    (TimeoutError(), "no answer in time"),
    (ConnectionResetError(104, ""), "Connection reset by peer"), (EOFError(), "the connection was closed"),
    (ValueError("  x is no y\n"), "x is no y"), (FileNotFoundError(2, "No such file", "/x"), "No such file")])
def test_a_reason_has_words_and_no_numbers(error: Exception, words: str) -> None:
    assert errors.reason(error) == words
