"""Carries out what mayflower-plus decides for reads in flight: starts those that wait, divides running ones anew.

The policy is asked when a flow has ended and after each poll (`controller.policy.reads.mayflower_plus` says what it
is told in return). A division is accounted for without giving up the processor; then the entries of its new parts are
installed, and only then the client hears of it, by the next revision of its read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from speedwell.controller.errors import ControllerError
from speedwell.controller.loops import Loops
from speedwell.controller.policy.reads.mayflower_plus import Division
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Selection
from speedwell.controller.reads.book import Following, Read, ReadBook, ReadPart, TooManyWaiting, UnknownRead
from speedwell.controller.reads.metrics import ReadMetrics

SILENCE_SECONDS = 5.0
"""A client that has not asked for news of its read for so long is not expected to hear of a division."""
MOST_WAITING = 512
"""Questions that wait for a revision at once: each holds one of the server's connections."""


class PartInstaller(Protocol):
    """What is needed of the flowserver."""

    def is_in_use(self, read: Read, selection: Selection, client_port: int) -> bool:
        """Whether the connection of a further part carries a read that somebody else asked for."""

    def new_part(self, read: Read, selection: Selection, client_port: int, size_bytes: int) -> ReadPart:
        """A further part, not accounted for yet; whatever used its connection before is over."""

    def install(self, parts: Sequence[ReadPart]) -> list[ControllerError]:
        """Install entries at once; what went wrong, when nothing is under way any more."""

    def remove_entry(self, part: ReadPart) -> None:
        """Take an entry out that nobody waits for."""


class ReadDivider:
    """Shares the selector and the book of reads with the flowserver."""

    def __init__(self, selector: Selector, reads: ReadBook, installer: PartInstaller, metrics: ReadMetrics,
                 loops: Loops) -> None:
        self._selector = selector
        self._reads = reads
        self._installer = installer
        self._metrics = metrics
        self._loops = loops
        self._following: dict[str, Read] = {}
        """The followed reads in the book, by id: most reads are not followed, and every end of one looks here."""
        self._pending = False
        self._waiting = 0

    def added(self, read: Read) -> None:
        """A followed read was placed, or is to wait. Before its flows are reported to the selector."""
        assert read.following is not None
        self._following[read.id] = read
        self._selector.read_added(read.id, read.following.request, read.following.most_parts, read.started_at)
        if not read.parts:
            self._metrics.waiting_reads.inc()

    def ended(self, read: Read) -> None:
        """A read is not in the book any more."""
        if read.following is not None:
            self._following.pop(read.id, None)
            self._selector.read_ended(read.id)
            read.following.next.set()

    def wake(self) -> None:
        """Something has become free: ask the policy soon. What happens at the same moment is taken together."""
        if not self._pending and self._followed():
            self._pending = True
            self._loops.spawn(self._revise)

    def follow(self, read_id: str, after: int, wait_seconds: float) -> Read:
        """A read as soon as its revision is above `after`, or when `wait_seconds` are over.

        One that is not followed is given at once. Raises UnknownRead, also if it ends meanwhile, or TooManyWaiting.
        """
        read = self._get(read_id)
        following = read.following
        if following is None:
            return read
        if wait_seconds > 0 and following.revision <= after:
            if self._waiting >= MOST_WAITING:
                raise TooManyWaiting(MOST_WAITING)
            self._waiting += 1
            following.waiting += 1
            try:
                following.next.wait(wait_seconds)
            finally:
                self._waiting -= 1
                following.waiting -= 1
        following.heard_at = time.monotonic()
        return self._get(read_id)

    def measured(self, now: float) -> None:
        """Counters are in: what a read has left is with its running parts, in proportion to their shares.

        Its client gives each part as much as it can carry, whatever the sizes were that the policy expected.
        """
        for read in self._followed():
            running = [part for part in read.running if part.estimated_bps > 0]
            if len(running) < 2:
                continue
            left_bytes = max(read.size_bytes - sum(part.transferred_bytes for part in read.parts), 0)
            total_bps = sum(part.estimated_bps for part in running)
            for part in running:
                part.size_bytes = part.transferred_bytes + round(left_bytes * part.estimated_bps / total_bps)
                self._selector.flow_resized(part.flow_id, 8.0 * part.size_bytes, now)

    def expire(self, now: float) -> None:
        """Forget waiting reads whose clients are silent; running ones are left as they are until they end."""
        for read in self._followed():
            following = read.following
            if following.waiting or now - following.heard_at <= SILENCE_SECONDS:    # type: ignore[union-attr]
                continue
            self._metrics.unfollowed.inc()
            if read.running:
                following.divided = False                                           # type: ignore[union-attr]
                self._selector.read_ended(read.id)
            else:
                self._reads.remove(read)
                self.ended(read)

    # --- divisions ---

    def _revise(self) -> None:
        self._pending = False
        now = time.monotonic()
        for division in self._selector.revise(now):
            read = self._reads.get(division.read_id)
            if read is not None and read.following is not None:
                self._divide(read, read.following, division, now)

    def _divide(self, read: Read, following: Following, division: Division, now: float) -> None:
        shares = [share for share in division.parts if share.flow_id is None]
        if len(shares) > len(following.ports):
            return
        if any(self._installer.is_in_use(read, share.selection, port)
               for share, port in zip(shares, following.ports, strict=False)):
            del following.ports[:len(shares)]       # they never were this client's
            return
        opened = []
        for share in shares:
            part = self._installer.new_part(read, share.selection, following.ports.pop(0), round(share.size_bits / 8))
            self._reads.add_part(read, part)
            opened.append(part)
        running = {part.flow_id: part for part in read.running if part not in opened}
        self._selector.read_divided(division, [part.flow_id for part in opened], now)
        for share in division.parts:
            known = running.get(share.flow_id or "")
            if known is not None:
                known.size_bytes = known.transferred_bytes + round(share.size_bits / 8)
                known.estimated_bps = share.selection.estimated_bps
                known.cost_seconds = share.selection.cost_seconds
        self._metrics.divisions.inc()
        if opened:
            self._loops.spawn(self._open, read, following, opened)
        else:
            following.revised()

    def _open(self, read: Read, following: Following, opened: Sequence[ReadPart]) -> None:
        failed = bool(self._installer.install(opened))
        for part in opened:
            if failed and self._reads.drop_part(part):
                self._selector.flow_dropped(part.flow_id, time.monotonic())
                self._metrics.parts_ended.labels("not-installed").inc()
                following.ports.append(part.five_tuple.destination_port)
            part.placed = not part.ended
            if part.ended:
                self._installer.remove_entry(part)
        if self._reads.get(read.id) is not read:
            return
        if failed and not read.running and following.divided:
            # Nothing of it runs, so it waits again: for the policy it had begun.
            self._selector.read_ended(read.id)
            self._selector.read_added(read.id, following.request, following.most_parts, time.monotonic())
        elif not failed:
            following.revised()

    # --- look-ups ---

    def _followed(self) -> list[Read]:
        return [read for read in self._following.values() if read.following is not None and read.following.divided]

    def _get(self, read_id: str) -> Read:
        read = self._reads.get(read_id)
        if read is None:
            raise UnknownRead(read_id)
        return read
