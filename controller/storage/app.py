"""Keeps what nameservers say of themselves and of dataservers, for people to see. Nothing is decided by it."""

from __future__ import annotations

import time
from typing import NamedTuple

from speedwell.controller.application import Application
from speedwell.controller.rest import RestApplication
from speedwell.controller.rest.pages import LIMIT, Limit, Offset, page_of
from speedwell.controller.rest.roles import NAMESERVER
from speedwell.controller.rest.routes import route
from speedwell.controller.services import Services
from speedwell.controller.storage.models import (
    Dataserver,
    Nameserver,
    NameserverReport,
    Namespace,
    NamespaceReport,
    Storage,
)
from speedwell.controller.topology.state import NetworkState

SILENT_SECONDS = 6.0
"""A nameserver reports three times as often."""
MAX_NAMESERVERS = 16


class _Heard(NamedTuple):
    at: float
    leads: bool


class StorageReport(Application):
    """See the module."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self._heard: dict[str, _Heard] = {}
        self._namespace: NamespaceReport | None = None
        services.get(RestApplication).register(self)

    @route("PUT", "/v1/storage/nameservers", summary="A nameserver is there", tag="storage",
           request=NameserverReport, status=204, roles=(NAMESERVER,))
    def tell(self, body: NameserverReport) -> None:
        """It reports every two seconds. Of more than 16, the one that is silent for longest is forgotten."""
        if body.namespace is not None:
            self._namespace = body.namespace
            self._heard = {address: heard._replace(leads=False) for address, heard in self._heard.items()}
        self._heard[body.address] = _Heard(time.monotonic(), body.namespace is not None)
        if len(self._heard) > MAX_NAMESERVERS:
            del self._heard[min(self._heard, key=lambda address: self._heard[address].at)]

    @route("GET", "/v1/storage", summary="Nameservers, and what dataservers have", tag="storage", response=Storage,
           query=("offset", "limit"))
    def storage(self, offset: Offset = 0, limit: Limit = LIMIT) -> Storage:
        now, known = time.monotonic(), self._namespace
        shown, page = page_of(known.dataservers if known else [], offset, limit)
        return Storage(
            nameservers=[Nameserver(
                address=address, heard_seconds_ago=now - heard.at,
                state="silent" if now - heard.at > SILENT_SECONDS else "leads" if heard.leads else "stands by")
                for address, heard in sorted(self._heard.items())],
            namespace=Namespace(**known.model_dump(exclude={"dataservers"})) if known else None,
            dataservers=[Dataserver(**server.model_dump(), host_name=self._state.name_of(server.host))
                         for server in shown], **page)
