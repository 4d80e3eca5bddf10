"""Transfers that placements expected, modelled as reads are: by their destination, from their source.

So they have a path, an entry that counts them, and a share of their own in Mayflower's model, beside the reads'.
"""

from __future__ import annotations

import logging
from typing import Protocol

from speedwell.controller.errors import ControllerError
from speedwell.controller.loops import Loops
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.placements.request import KnownFlow
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.reads.book import Read, ReadBook, ReadPart, ReadRequest, UnknownRead

log = logging.getLogger(__name__)


class ReadPlacing(Protocol):
    """What is needed of the flowserver."""

    reads: ReadBook

    def place(self, wanted: ReadRequest) -> Read: ...

    def end(self, read_id: str) -> None: ...

    def counted_bytes(self, part: ReadPart, since: float) -> int | None: ...


class ReportedTransfers:
    """Is told when transfers begin and end; what takes time is done beside."""

    def __init__(self, flowserver: ReadPlacing, loops: Loops) -> None:
        self._flowserver = flowserver
        self._loops = loops
        self._running: dict[FiveTuple, ReadRequest] = {}
        self._placed: dict[FiveTuple, str] = {}

    def began(self, five_tuple: FiveTuple, size_bytes: int, placement_id: str) -> bool:
        """See `Transfers`."""
        part = self._flowserver.reads.part_on(five_tuple)
        read = self._flowserver.reads.get(part.read_id) if part else None
        if read is not None and read.placement_id is None:
            return False
        self._running[five_tuple] = wanted = ReadRequest(
            five_tuple.destination, [five_tuple.destination_port],
            [Replica(five_tuple.source, five_tuple.source_port)], size_bytes, most_parts=1, placement_id=placement_id)
        self._loops.spawn(self._place, five_tuple, wanted)
        return True

    def ended(self, five_tuple: FiveTuple) -> None:
        """See `Transfers`."""
        self._running.pop(five_tuple, None)
        read_id = self._placed.pop(five_tuple, None)
        if read_id is not None:
            self._loops.spawn(self._end, read_id)

    def known(self, counted_since: float) -> list[KnownFlow]:
        """See `Transfers`."""
        flows = []
        for read in self._flowserver.reads:
            for part in read.flows:
                if not part.ended:
                    bytes_sent = self._flowserver.counted_bytes(part, counted_since)
                    left_bits = None if bytes_sent is None else 8.0 * max(part.size_bytes - bytes_sent, 0)
                    flows.append(KnownFlow(read.placement_id or part.flow_id, part.five_tuple.source,
                                           part.five_tuple.destination, 8.0 * part.size_bytes, left_bits))
        return flows

    def _place(self, five_tuple: FiveTuple, wanted: ReadRequest) -> None:
        if self._running.get(five_tuple) is not wanted:
            return
        try:
            read = self._flowserver.place(wanted)
        except ControllerError as error:
            log.info("a transfer takes the default ways: %s", error)
            return
        if self._running.get(five_tuple) is wanted:
            self._placed[five_tuple] = read.id
        else:
            self._end(read.id)

    def _end(self, read_id: str) -> None:
        try:
            self._flowserver.end(read_id)
        except UnknownRead:
            return      # its entry idled out, or its host moved
        except ControllerError as error:
            log.warning("a transfer's entry goes by its idle timeout only: %s", error)
