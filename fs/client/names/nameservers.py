"""Requests to whichever of an installation's nameservers leads, or owns what they are about, waiting for one that is
away."""

import math
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import (
    InvalidArgument,
    NameserverUnavailable,
    NamespaceRebuilding,
    NotAuthenticated,
    NotLeader,
    NotOwner,
    SpeedwellError,
)
from speedwell.fs.identity.known import identity_for
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.slots import ANY_OWNER, BLOCKS, addresses_of, block_of_request
from speedwell.fs.wire.calls import CallFailed, Calls
from speedwell.fs.wire.channel import CONNECT_TIMEOUT_SECONDS, STALL_TIMEOUT_SECONDS, Channel, ConnectionLost, connect
from speedwell.fs.wire.secure_channel import data_connector

RETRY_PAUSE_SECONDS = 0.05
CALL_SECONDS = 5.0
ATTEMPT_SECONDS = 2.0
"""How long one of several nameservers may take before another is asked."""

REBUILDING_PAUSE_SECONDS = 0.2
REBUILDING_PATIENCE = 24
"""So many times its usual time a call waits for a nameserver that says it is getting its namespace back."""

SLOT_CONNECT_SECONDS = 0.9
"""A SYN that nobody answers while a block moves would be sent again after a second."""

TAKEOVER_SECONDS = 20.0
"""How long a call waits by default where a nameserver that dies is followed by another. Where a member of etcd fails
with its machine that took 15 seconds on a busy one."""


def parse_addresses(nameserver: str) -> tuple[str, ...]:
    """The addresses in `HOST:PORT[,HOST:PORT...]`. Raises InvalidArgument."""
    addresses = tuple(nameserver.split(","))
    hosts = [parse_address(address, "nameserver")[0] for address in addresses]
    if ANY_OWNER in hosts and len(hosts) > 1:
        raise InvalidArgument(f"nameserver: {ANY_OWNER} stands for all owners: name nothing else beside it")
    return addresses


def leads(address: str, timeout_seconds: float, identity: Path | None = None) -> bool | None:
    """Whether the nameserver at `address` leads; None if it does not answer in time. Raises what it answers else."""
    calls = Calls(_address_for(address, 0), math.ceil(timeout_seconds), identity_for(address, identity))
    try:
        calls.call("Statistics", pb.StatisticsRequest(), timeout_seconds)
    except NotLeader:
        return False
    except CallFailed:
        return None
    finally:
        calls.close()
    return True


def _address_for(address: str, block: int) -> str:
    """Where a request for a block goes by the address of its slots, if that is what a nameserver's address says."""
    host, _, port = address.rpartition(":")
    return f"{addresses_of(block)[0]}:{port}" if host == ANY_OWNER else address


class Nameservers:
    """One or several nameservers of one namespace. Where several own it, each request goes to the owner of what it is
    about; who owns what is asked of one that refuses, with one request more. At `slots:PORT` the network takes it
    there by the address of its slot, and each owner that answered the first time says for which other blocks its
    connection is good. Thread-safe."""

    def __init__(self, nameserver: str, timeout_seconds: float | None = None, local_host: str | None = None,
                 identity: Path | str | None = None) -> None:
        """`timeout_seconds` is for a call with all its attempts; None: CALL_SECONDS, with several TAKEOVER_SECONDS.
        `identity` is a directory (`identity.known.identity_for`). Raises InvalidArgument, IdentityError."""
        addresses = parse_addresses(nameserver)
        self._is_by_slot = parse_address(addresses[0], "nameserver")[0] == ANY_OWNER
        several = len(addresses) > 1 or self._is_by_slot
        self.address = nameserver
        self._timeout_seconds = timeout_seconds or (TAKEOVER_SECONDS if several else CALL_SECONDS)
        self._attempt_seconds = min(ATTEMPT_SECONDS, self._timeout_seconds) if several else self._timeout_seconds
        known = identity_for(nameserver, identity)
        self.has_identity = known is not None
        self._connect_secured = None if known is None else data_connector(known)
        self._make_calls = partial(Calls, stall_timeout_seconds=math.ceil(self._attempt_seconds), identity=known,
                                   local_host=local_host, connect_timeout_seconds=SLOT_CONNECT_SECONDS
                                   if self._is_by_slot else CONNECT_TIMEOUT_SECONDS)
        self._calls = [self._make_calls(_address_for(address, 0)) for address in addresses]
        self._of_owner = dict(zip((_address_for(each, 0) for each in addresses), self._calls, strict=True))
        self._by_block: dict[int, str] = {}     # a slot's address at which its owner was reached
        self._owners: list[str] = []        # by block, where several own the namespace
        self._asked = 0
        self._lock = threading.Lock()

    def call(self, method: str, request: Any) -> Any:
        """The reply. The request is sent until somebody answers, though it may have been carried out: changes have an
        id (`ChangeId` of the wire format).

        Raises what the nameserver answered (`fs.errors`), NotAuthenticated if all refuse, NameserverUnavailable,
        FileClosed.
        """
        began = time.monotonic()
        deadline = began + self._timeout_seconds
        refusing: set[int] = set()
        while True:
            left = deadline - time.monotonic()
            asked, owners = self._asked, self._owners
            calls = self._of_owner[owners[block_of_request(request)]] if owners else self._calls[asked]
            seconds = max(min(left, self._attempt_seconds), 0.001)
            try:
                return self._call_by_slot(method, request, seconds) if self._is_by_slot else \
                    calls.call(method, request, seconds)
            except NotOwner:
                if not self._is_by_slot and not self._learn_owners(calls):
                    self._ask_next(asked)
            except NamespaceRebuilding:
                if time.monotonic() - began > self._timeout_seconds * REBUILDING_PATIENCE:
                    raise
                time.sleep(REBUILDING_PAUSE_SECONDS)
                deadline = time.monotonic() + self._timeout_seconds
                continue
            except NotAuthenticated:    # it may be the only one: another one leads then
                refusing.add(asked)
                if len(refusing) == len(self._calls):
                    raise
                self._ask_next(asked)
                continue
            except (NotLeader, CallFailed):
                self._owners = []       # another one may own it by now: whoever answers says who
                self._ask_next(asked)
            if left <= RETRY_PAUSE_SECONDS or time.monotonic() >= deadline:
                raise NameserverUnavailable(f"the nameserver at {self.address} did not answer within "
                                            f"{self._timeout_seconds:g} s")
            time.sleep(RETRY_PAUSE_SECONDS)

    @property
    def namespace(self) -> bytes:
        """The identity of the namespace; empty before the first call."""
        return next((calls.namespace for calls in self._known_calls() if calls.namespace), b"")

    def connect_data(self, host: str, port: int, *, timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
                     stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
                     bound: socket.socket | None = None) -> Channel:
        """Connect to a dataserver, as `fs.wire.channel.connect`, or over TLS where the nameserver says so."""
        secured = self._connect_secured
        if secured is not None:
            try:
                if not self.namespace:      # nothing was asked yet
                    self.call("Statistics", pb.StatisticsRequest())
            except SpeedwellError as error:
                raise ConnectionLost(f"whether {host}:{port} takes TLS only a nameserver knows: {error}") from None
            if not any(calls.encrypts_data for calls in self._known_calls()):
                secured = None
        return (secured or connect)(host, port, timeout_seconds=timeout_seconds,
                                    stall_timeout_seconds=stall_timeout_seconds, bound=bound)

    def close(self) -> None:
        """Calls afterwards raise FileClosed."""
        for calls in list(self._of_owner.values()):
            calls.close()

    def _known_calls(self) -> list[Calls]:
        return list(self._of_owner.values()) if self._is_by_slot else [self._calls[self._asked]]

    def _call_by_slot(self, method: str, request: Any, seconds: float) -> Any:
        block = block_of_request(request)
        address = known = self._by_block.get(block)
        if address is None:
            address = _address_for(self.address, block)
            with self._lock:
                if address not in self._of_owner:
                    self._of_owner[address] = self._make_calls(address)
        calls = self._of_owner[address]
        try:
            reply = calls.call(method, request, seconds)
        except (NotOwner, NotLeader, CallFailed) as error:
            with self._lock:
                self._by_block = {each: other for each, other in self._by_block.items() if other != address}
                others = [each for each in self._of_owner.values() if each is not calls]
            if isinstance(error, NotOwner):
                self._go_by_map(block, [calls])
            elif address == _address_for(self.address, block):
                self._go_by_map(block, others[-2:])
            raise
        if known is None:
            self._learn_blocks(block, address, calls)
        return reply

    def _go_by_map(self, block: int, asked: list[Calls]) -> None:
        """Have the next request for a block go where an owner says that it is: this host may still take its slots'
        addresses for its own, because of an owner here that lost the block or has ended."""
        if any(self._learn_owners(calls) for calls in asked):
            with self._lock:
                self._by_block = self._by_block | {block: self._owners[block]}

    def _learn_blocks(self, block: int, address: str, calls: Calls) -> None:
        """For which blocks whoever answers at a slot's address may be asked there, too."""
        try:
            reply = calls.call("Owners", pb.OwnersRequest(), self._attempt_seconds)
        except (SpeedwellError, CallFailed):
            return
        owners = [each.address for each in reply.owners for _ in range(each.first, each.last + 1)]
        if len(owners) == BLOCKS:
            with self._lock:
                self._by_block = self._by_block | {each: address for each, owner in enumerate(owners)
                                                   if owner == owners[block]}

    def _learn_owners(self, calls: Calls) -> bool:
        """Whether a nameserver that does not own something says who does."""
        try:
            reply = calls.call("Owners", pb.OwnersRequest(), self._attempt_seconds)
        except (SpeedwellError, CallFailed):
            return False
        owners = [each.address for each in reply.owners for _ in range(each.first, each.last + 1)]
        with self._lock:
            for address in set(owners) - {""} - self._of_owner.keys():
                self._of_owner[address] = self._make_calls(address)
        if len(owners) != BLOCKS or "" in owners:
            return False
        self._owners = owners
        return True

    def _ask_next(self, asked: int) -> None:
        with self._lock:
            if self._asked == asked:   # else another thread has moved on already
                self._asked = (asked + 1) % len(self._calls)
