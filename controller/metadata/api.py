"""`/v1/metadata`: servers, blocks and what they cost, in the words of the interface."""

from __future__ import annotations

import time
from collections import Counter
from ipaddress import IPv4Address
from typing import Annotated, Protocol

from pydantic import Field

from speedwell.controller.errors import UnknownHost, UnknownSwitch
from speedwell.controller.metadata import models
from speedwell.controller.metadata.book import (
    SILENT_SECONDS,
    MetadataBook,
    MetadataServerRefused,
    Phase,
    Server,
    UnknownMetadataServer,
)
from speedwell.controller.metadata.hot_book import HotBook, Said
from speedwell.controller.metadata.models import prefix_of, text_of
from speedwell.controller.metadata.owners import SlotOwner, SlotOwners
from speedwell.controller.metadata.owners import prefix_of as slots_of
from speedwell.controller.metadata.steering import role_of
from speedwell.controller.policy.metadata.blocks import SPACE, size
from speedwell.controller.rest.access import Sender, require_own_host
from speedwell.controller.rest.fields import DpidInput, Ipv4
from speedwell.controller.rest.roles import DATASERVER, NAMESERVER
from speedwell.controller.rest.routes import route
from speedwell.controller.switches.entries import FlowEntry
from speedwell.controller.topology.state import NetworkState

SOON_SECONDS, LATER_SECONDS = 0.1, 1.0
Lost = Annotated[bool, Field(description="It does not come back, and its records are lost: others get its blocks, "
                             "empty, at once.")]


class MetadataService(Protocol):
    """What these routes need of the application."""

    book: MetadataBook

    def announce(self, said: Server) -> None: ...

    def remove(self, host: str, lost: bool) -> None: ...

    owners: SlotOwners
    hot: HotBook

    def announce_owner(self, said: SlotOwner) -> None: ...

    def entries(self, dpid: str) -> list[FlowEntry]: ...

    def paper_entries(self, dpid: str) -> int: ...


class MetadataApi:
    def __init__(self, service: MetadataService, state: NetworkState) -> None:
        self._service = service
        self._state = state

    @route("POST", "/v1/metadata/servers", summary="A metadata server is there", tag="metadata",
           request=models.Announcement, response=models.Orders,
           problems=[UnknownHost, MetadataServerRefused], roles=(DATASERVER,))
    def announce(self, body: models.Announcement, sender: Sender = None) -> models.Orders:
        """The first time, it joins. The answer says which blocks come and go; it does what it is told and announces
        itself again after `again_seconds`. One that is silent for 3 s keeps its blocks, because nobody else has its
        records. A dataserver's certificate is for the host of that name, or of that address, alone."""
        require_own_host(sender, (body.host, self._state.name_of(body.host)))
        self._service.announce(Server(
            body.host, body.port, body.id, time.monotonic(), tuple(map(prefix_of, body.owned)),
            tuple(map(prefix_of, body.ready)), {prefix_of(each.block): each.host for each in body.fetching},
            tuple(body.members)))
        book, host, hot = self._service.book, body.host, self._service.hot
        replicated = [(address, book.asked_for(address)) for address in sorted(hot.replicated(host))]
        hot.said(host, Said(body.reads, {int(IPv4Address(ip)): reads for ip, reads in body.hottest.items()},
                            frozenset([*(int(IPv4Address(ip)) for ip in body.answers_for),
                                       *(address for address, owner in replicated if owner == host)])))
        moves = [each for each in book.transfers if host in (each.source, each.target)]
        return models.Orders(
            may_own=None if book.layout is None else list(map(text_of, book.may_own(host))),
            incoming=[models.Incoming(block=text_of(each.block), host=each.source, port=body.port if each.source else
                                      None, take=each.phase >= Phase.TAKING)
                      for each in moves if each.target == host],
            leaving=[models.Leaving(block=text_of(each.block), host=each.target)
                     for each in moves if each.source == host],
            members=book.members,
            replicas=[models.Replica(address=str(IPv4Address(address)), host=owner)
                      for address, owner in replicated if owner is not None and owner != host],
            spread=[str(IPv4Address(address)) for address in sorted(hot.addresses)
                    if book.asked_for(address) == host],
            again_seconds=SOON_SECONDS if moves or book.layout is None else LATER_SECONDS)

    @route("DELETE", "/v1/metadata/servers/{host}", summary="A metadata server is to leave", tag="metadata",
           status=204, problems=[UnknownMetadataServer, MetadataServerRefused], query=("lost",))
    def remove(self, host: Ipv4, lost: Lost = False) -> None:
        """Its blocks go to the others with their records; once it is not listed any more it can be stopped. One
        that is awaited, because it had keys before the controller started, can only be lost."""
        self._service.remove(host, lost)

    @route("GET", "/v1/metadata/servers", summary="The metadata servers", tag="metadata",
           response=models.MetadataServers)
    def list_servers(self) -> models.MetadataServers:
        book, now = self._service.book, time.monotonic()
        found = []
        for host, server in sorted(book.servers.items()):
            blocks = book.blocks.get(host, ())
            silent_seconds = now - server.heard_at
            found.append(models.MetadataServer(
                host=host, host_name=self._state.name_of(host), port=server.port, blocks=list(map(text_of, blocks)),
                share=sum(map(size, blocks)) / size(SPACE), silent_seconds=silent_seconds,
                state="leaving" if server.is_leaving else "silent" if silent_seconds > SILENT_SECONDS
                else "busy" if blocks else "idle"))
        shares = [server.share for server in found]
        return models.MetadataServers(servers=found, is_settled=book.layout is not None,
                                      awaited=sorted(book.awaited),
                                      busiest_over_mean=max(shares) * len(shares) / sum(shares) if sum(shares)
                                      else None, hot_keys=self._hot_keys())

    def _hot_keys(self) -> list[models.HotKey]:
        hot = self._service.hot
        replicas: dict[int, set[str]] = {}
        for (_, address), servers in hot.in_force.items():
            replicas.setdefault(address, set()).update(servers)
        rates = hot.rates
        return [models.HotKey(address=str(IPv4Address(address)), reads=rates.get(address, 0.0),
                              replicas=sorted(servers)) for address, servers in sorted(replicas.items())]

    @route("GET", "/v1/metadata/blocks", summary="Who owns which keys", tag="metadata",
           response=models.MetadataBlocks)
    def list_blocks(self) -> models.MetadataBlocks:
        book = self._service.book
        owned = [(block, host) for host, blocks in book.blocks.items() for block in blocks]
        owned += [(hole, None) for hole in book.holes]      # type: ignore[misc]
        found = [(block, host, None) for block, host in owned]
        found += [(each.block, each.source, each) for each in book.transfers]      # type: ignore[misc]
        return models.MetadataBlocks(blocks=[models.MetadataBlock(
            block=text_of(block), host=host, host_name=self._state.name_of(host) if host else None,
            moving_to=move.target if move else None, phase=move.phase.name.lower() if move else None)
            for block, host, move in sorted(found, key=lambda each: each[0])])

    @route("PUT", "/v1/metadata/owners", summary="A nameserver owns blocks of the namespace", tag="metadata",
           request=models.OwnerAnnouncement, status=204, problems=[UnknownHost, MetadataServerRefused],
           roles=(NAMESERVER,))
    def announce_owner(self, body: models.OwnerAnnouncement) -> None:
        """It says so every second, and when that changes. Of two that claim a block the one with the newer epoch
        has it."""
        self._service.announce_owner(SlotOwner(body.host, body.epoch, frozenset(body.owned), frozenset(body.left)))

    @route("GET", "/v1/metadata/owners", summary="Where requests for each block of the namespace go", tag="metadata",
           response=models.Owners)
    def list_owners(self) -> models.Owners:
        owners = self._service.owners.owners.items()
        return models.Owners(owners=[models.OwnerOfBlock(
            block=block, addresses=text_of(slots_of(block)), host=host, host_name=self._state.name_of(host))
            for block, host in owners])

    @route("GET", "/v1/metadata/tables/{dpid}", summary="What metadata servers cost a switch", tag="metadata",
           response=models.MetadataTables, problems=[UnknownSwitch])
    def get_tables(self, dpid: DpidInput) -> models.MetadataTables:
        if dpid not in self._state.switches:
            raise UnknownSwitch(dpid)
        entries = self._service.entries(dpid)
        roles = Counter(map(role_of, entries))
        return models.MetadataTables(
            dpid=dpid, switch_name=self._state.name_of(dpid), servers=roles["servers"], racks=roles["racks"],
            pods=roles["pods"], sources=roles["sources"], hot=roles["hot"], fixed=roles["fixed"], total=len(entries),
            paper=self._service.paper_entries(dpid), limit=self._state.settings.metadata_entries)
