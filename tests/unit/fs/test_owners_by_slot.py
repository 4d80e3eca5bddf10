"""Requests to the owners of a namespace by the addresses of slots, over a network of the test."""

from collections import Counter
from typing import Any

import pytest

from speedwell.fs import paths, slots
from speedwell.fs.client.names import nameservers as nameservers
from speedwell.fs.client.names.nameservers import Nameservers
from speedwell.fs.errors import InvalidArgument, NotOwner
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.calls import CallFailed

PORT = 7400


class Network:
    """Who gets what is sent to an address: `tables` by block, else the owner that has the address for its own."""

    def __init__(self) -> None:
        self.owners = dict.fromkeys(range(128), "10.255.1.1:7000") | dict.fromkeys(range(128, 256), "10.255.1.2:7000")
        self.tables = dict(self.owners)
        self.silent: set[str] = set()
        self.messages: Counter[tuple[str, str]] = Counter()
        self.connected: list[str] = []

    def calls(self, address: str, **_: Any) -> "Calls":
        self.connected.append(address)
        return Calls(self, address)

    def reached(self, address: str) -> str:
        host = address.rpartition(":")[0]
        block = next((each for each in range(256) if host == str(slots.addresses_of(each)[0])), None)
        return address if block is None else self.tables[block]


class Calls:
    namespace, encrypts_data = b"n", False

    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address

    def call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        network, owner = self._network, self._network.reached(self._address)
        if owner in network.silent:
            raise CallFailed
        network.messages[owner, method] += 1
        if method == "Owners":
            return pb.OwnersReply(owners=[pb.OwnedBlocks(first=block, last=block, address=address)
                                          for block, address in network.owners.items()])
        if network.owners[slots.block_of_request(request)] != owner:
            raise NotOwner("another's")
        return owner

    def close(self) -> None:
        pass


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(nameservers, "Calls", made.calls)
    return made


def asked(client: Nameservers, block: int) -> str:
    path = paths.below(block << slots.BLOCK_SHIFT | 7, b"name")
    return str(client.call("Lookup", pb.LookupRequest(path=path)))


def test_each_owner_has_one_connection_and_one_question_more(network: Network) -> None:
    client = Nameservers(f"slots:{PORT}")
    for block in (3, 4, 90, 200, 201, 3, 255):
        assert asked(client, block) == network.owners[block]
    assert network.messages == {("10.255.1.1:7000", "Lookup"): 4, ("10.255.1.1:7000", "Owners"): 1,
                                ("10.255.1.2:7000", "Lookup"): 3, ("10.255.1.2:7000", "Owners"): 1}
    assert network.connected == [f"{slots.addresses_of(block)[0]}:{PORT}" for block in (0, 3, 200)]


def test_who_refuses_names_the_owner_before_tables_do(network: Network) -> None:
    client = Nameservers(f"slots:{PORT}")
    asked(client, 3)
    network.owners[3] = "10.255.1.2:7000"       # the tables still lead to the former owner
    assert asked(client, 3) == "10.255.1.2:7000"
    assert asked(client, 4) == "10.255.1.1:7000"


def test_where_nobody_answers_at_a_slot_another_owner_knows_who_has_it(network: Network) -> None:
    client = Nameservers(f"slots:{PORT}")
    asked(client, 200)
    asked(client, 3)
    network.silent.add("10.255.1.1:7000")
    network.owners |= dict.fromkeys(range(128), "10.255.1.2:7000")
    assert asked(client, 3) == "10.255.1.2:7000"


def test_slots_stand_for_all_owners_alone() -> None:
    with pytest.raises(InvalidArgument, match="stands for all owners"):
        Nameservers("slots:7400,10.0.0.1:7400")
