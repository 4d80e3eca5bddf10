"""Requests about quotas."""

import logging
import threading

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.nameserver.namespace.quotas import Limits, Quotas
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb

log = logging.getLogger(__name__)


class QuotaRequests:
    """One method per rpc, callable from any thread; `guard` is the service's."""

    def __init__(self, guard: threading.RLock, quotas: Quotas) -> None:
        self._guard = guard
        self._quotas = quotas

    def set_quota(self, request: pb.SetQuotaRequest) -> pb.SetQuotaReply:
        """What lies there already is counted by the next heartbeats; a first step is done at once."""
        limits = Limits(
            requests.number(request.max_bytes, "max_bytes", requests.MAX_SIZE_BYTES)
            if request.HasField("max_bytes") else None,
            requests.number(request.max_files, "max_files", requests.MAX_FILES, 1)
            if request.HasField("max_files") else None)
        with self._guard:
            if limits == Limits():
                return pb.SetQuotaReply(changed=self._quotas.clear(request.path))
            self._quotas.set(request.path, limits)
            self.count()
            return pb.SetQuotaReply(changed=True)

    def quotas(self, request: pb.QuotasRequest) -> pb.QuotasReply:
        with self._guard:
            if request.path:
                return pb.QuotasReply(quotas=self._quotas.of(request.path))
            return pb.QuotasReply(quotas=self._quotas.limited())

    def count(self) -> None:
        """One step of what is still to be counted."""
        try:
            self._quotas.count()
        except SpeedwellError as error:
            log.warning("a quota is not counted for now: %s", error)
