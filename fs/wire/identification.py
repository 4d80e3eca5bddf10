"""Who answers at a dataserver's address. On another network that may be anybody: no byte of a file is for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from speedwell.fs.proto.speedwell_pb2 import (
    OK,
    DataReply,
    DataRequest,
    IdentityOperation,
    ProofKeyReply,
    ProofOperation,
    Replica,
)
from speedwell.fs.tokens import proof
from speedwell.fs.wire.channel import STALL_TIMEOUT_SECONDS, Channel, ConnectionLost, MalformedFrame, OtherVersion

if TYPE_CHECKING:
    from speedwell.fs.client.names.metadata import MetadataClient

UNKNOWN_NAMESPACE = bytes(16)
"""What a dataserver says that has contents and does not know to which namespace they belong."""

ANSWER_TIMEOUT_SECONDS = 3.5
"""For somebody who takes the question and never answers; a dataserver does at once."""


class WrongServer(ConnectionLost):
    """Another server, or none of Speedwell's, answers at a dataserver's address."""


def identify(channel: Channel, dataserver_id: str, namespace: bytes, key: ProofKeyReply | None = None) -> None:
    """Ask a dataserver who it is; an empty `namespace` may be any. With a `key` prove who we are. Closes the
    connection and raises WrongServer if it is another one, ConnectionLost if it does not answer."""
    try:
        channel.set_timeout(ANSWER_TIMEOUT_SECONDS)
        channel.send(DataRequest(identity=IdentityOperation()))
        reply = channel.expect(DataReply)
        channel.set_timeout(STALL_TIMEOUT_SECONDS)
    except OtherVersion as error:
        channel.close()
        raise WrongServer(f"the dataserver {dataserver_id}: {error}") from None
    except MalformedFrame:
        channel.close()
        raise WrongServer(_wrong(channel, dataserver_id, "what answers there is no server of Speedwell")) from None
    except ConnectionLost:
        channel.close()
        raise
    found = ""
    if reply.status != OK or reply.dataserver_id != dataserver_id:
        found = f"{reply.dataserver_id or 'something else'} answers there"
    elif namespace and reply.namespace and reply.namespace != namespace:
        found = "that of another installation answers there"
    if found:
        channel.close()
        raise WrongServer(_wrong(channel, dataserver_id, found))
    if key is not None and reply.nonce:
        mac = proof(key.secret, reply.nonce, dataserver_id)
        channel.send(DataRequest(proof=ProofOperation(client=key.client, key=key.key, mac=mac)), more=True)
        channel.client = key.client


def connect_identified(server: Replica, metadata: MetadataClient,
                       stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS) -> Channel:
    """A connection of its own to that very dataserver. Raises WrongServer, ConnectionLost, and what the nameserver
    answers."""
    key = metadata.proof_key()
    channel = metadata.nameservers.connect_data(server.host, server.port)
    identify(channel, server.dataserver_id, metadata.nameservers.namespace, key)
    channel.set_timeout(stall_timeout_seconds)
    return channel


class Identified:
    """The dataservers that have said who they are, each asked at the first connection to its address, and the
    connections on which we did. Thread-safe. `namespace` tells that of the installation, `key` that with which we
    prove who we are."""

    def __init__(self, namespace: Callable[[], bytes],
                 key: Callable[[], ProofKeyReply | None] = lambda: None) -> None:
        self._namespace = namespace
        self._key = key
        self._known: set[tuple[str, int, str]] = set()
        self._lock = threading.Lock()

    def require(self, channel: Channel, server: Replica) -> Channel:
        """The connection, which leads to that very dataserver. Raises WrongServer, ConnectionLost."""
        place = (server.host, server.port, server.dataserver_id)
        key = self._key()
        with self._lock:
            known = place in self._known
        if not known or (key is not None and channel.client != key.client):
            identify(channel, server.dataserver_id, self._namespace(), key)
            with self._lock:
                self._known.add(place)
        return channel

    def forget(self, server: Replica) -> None:
        """Ask that dataserver again: it did not serve, and another one may have taken its address."""
        with self._lock:
            self._known.discard((server.host, server.port, server.dataserver_id))


def _wrong(channel: Channel, dataserver_id: str, found: str) -> str:
    return (f"{channel.peer} is not the dataserver {dataserver_id}: {found}. Is this machine on the network of the "
            "installation?")
