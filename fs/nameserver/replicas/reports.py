"""Tells the controller, for people to see, which nameserver leads, or hears dataservers, and what they have."""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speedwell.fs.controller import Controller
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.proto.speedwell_pb2 import DataserverStatus, StatisticsReply, StatisticsRequest

log = logging.getLogger(__name__)

EVERY_SECONDS = 2.0
ANSWER_SECONDS = 1.0
MAX_BYTES = 200 << 10
"""Of what is said of dataservers: the controller takes requests of 256 KiB."""
MAX_WARNINGS, MAX_WARNING = 16, 1000


class Reports(threading.Thread):
    """Reports between `start` and `stop`. A controller that is away, or takes no reports, holds nobody up."""

    def __init__(self, controller_url: str, requests: Requests, address: str, identity: Path | None = None,
                 leads: Callable[[], bool] = lambda: True) -> None:
        """`address` is the nameserver's own. Of several that answer the one that `leads` tells of all. Raises
        InvalidArgument, IdentityError as `Controller` does."""
        super().__init__(name="reports", daemon=True)
        self._controller = Controller(controller_url, identity)
        self._connection = self._controller.connect(ANSWER_SECONDS)
        self._requests = requests
        self._address = address
        self._leads = leads
        self._stop_asked = threading.Event()
        self._problem = ""

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()

    def run(self) -> None:
        while True:
            problem = self._report()
            if problem and problem != self._problem:
                log.info("cannot tell the controller which nameserver leads: %s", problem)
            self._problem = problem
            if self._stop_asked.wait(EVERY_SECONDS):
                self._connection.close()
                return

    def _report(self) -> str:
        """What is wrong, if anything is."""
        if not self._controller.is_known:
            return ""
        body = json.dumps({"address": self._address, "namespace": self._namespace()})
        try:
            self._connection.request("PUT", "/v1/storage/nameservers", body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return str(error) or type(error).__name__
        return "" if answer.status == 204 else f"{answer.status} {content[:200].decode(errors='replace')}"

    def _namespace(self) -> dict[str, Any] | None:
        if not self._leads():
            return None
        try:
            # not counted as a request
            reply = Requests.answer(self._requests, "Statistics", StatisticsRequest().SerializeToString())
        except SpeedwellError:
            return None
        told = StatisticsReply.FromString(reply)
        dataservers, left_bytes = [], MAX_BYTES
        for each in map(_of_one, sorted(told.dataservers, key=_care)):
            left_bytes -= len(json.dumps(each)) + 2
            if left_bytes < 0:
                break
            dataservers.append(each)
        return {
            "dataservers_known": len(told.dataservers),
            "dataservers_alive": sum(each.server.alive for each in told.dataservers),
            "files": told.files, "directories": told.directories, "capacity_bytes": told.capacity_bytes,
            "available_bytes": told.available_bytes, "replication": told.replication,
            "min_replicas": told.min_replicas, "unwritable_files": told.unwritable,
            "warnings": [warning[:MAX_WARNING] for warning in told.warnings[:MAX_WARNINGS]],
            "dataservers": dataservers}


def _of_one(status: DataserverStatus) -> dict[str, Any]:
    return {"id": status.server.dataserver_id, "host": status.server.host, "alive": status.server.alive,
            "draining": status.draining, "heard_seconds_ago": round(max(status.last_heartbeat_seconds_ago, 0.0), 1),
            "capacity_bytes": status.capacity_bytes, "available_bytes": status.available_bytes,
            "replicas": status.replicas, "failed_directories": _failed(status)}


def _failed(status: DataserverStatus) -> int:
    return sum(bool(directory.failure) for directory in status.directories)


def _care(status: DataserverStatus) -> tuple[bool, bool, bool, float]:
    """Those that may be left out come last."""
    free = status.available_bytes / status.capacity_bytes if status.capacity_bytes else 0.0
    return status.server.alive, not _failed(status), not status.draining, free
