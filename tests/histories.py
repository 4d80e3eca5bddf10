"""Recorded histories of clients that append records to one file and read it, and what must hold of them.

Records have a fixed size, so a file that is the records one after the other can be taken apart again. Times are
those of the machine's monotonic clock, which all processes share.
"""

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

RECORD_BYTES = 256
_HEAD = struct.Struct(">IQ")


def record(writer: int, number: int) -> bytes:
    """The record `number` of a writer."""
    head = _HEAD.pack(writer, number)
    body = (head * (RECORD_BYTES // len(head) + 1))[:RECORD_BYTES - 4]
    return body + zlib.crc32(body).to_bytes(4, "big")


def parse(data: bytes) -> tuple[int, int] | None:
    """(writer, number) of a record, None if it is none."""
    if len(data) != RECORD_BYTES or zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        return None
    writer, number = _HEAD.unpack_from(data)
    return writer, number


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Append:
    """`offset` and `acknowledged` are None where no acknowledgement came (yet)."""

    writer: int
    number: int
    begun: float
    acknowledged: float | None = None
    offset: int | None = None


@dataclass
class Read:
    """A read of the whole file from its beginning, as far as the reader saw it."""

    reader: int
    begun: float
    ended: float
    length: int
    digest: str


@dataclass
class History:
    appends: dict[tuple[int, int], Append] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)

    def load(self, path: Path) -> None:
        """Add what one client wrote down; its last line may be cut off."""
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            kind = entry.pop("kind")
            if kind == "begin":
                self.appends[entry["writer"], entry["number"]] = Append(**entry)
            elif kind == "acknowledged":
                append = self.appends[entry["writer"], entry["number"]]
                append.acknowledged, append.offset = entry["time"], entry["offset"]
            elif kind == "read":
                self.reads.append(Read(**entry))

    @property
    def acknowledged(self) -> list[Append]:
        return [append for append in self.appends.values() if append.offset is not None]


def violations(history: History, final: bytes) -> list[str]:
    """What of the history contradicts the file's `final` content; an empty list if nothing does.

    Checked: no record torn, duplicated, lost or moved; appends that did not overlap in time lie in the order of
    their times, so the file's order is a linearization; every read saw a prefix of the final content, with
    everything in it that had been acknowledged before the read began.
    """
    found: list[str] = []
    places: dict[tuple[int, int], int] = {}
    for offset in range(0, len(final), RECORD_BYTES):
        name = parse(final[offset:offset + RECORD_BYTES])
        if name is None:
            found.append(f"torn: the bytes at {offset} are no record")
        elif name in places:
            found.append(f"duplicated: {name} is at {places[name]} and at {offset}")
        elif name not in history.appends:
            found.append(f"invented: {name} at {offset} was never appended")
        else:
            places[name] = offset
    for append in history.acknowledged:
        place = places.get((append.writer, append.number))
        if place != append.offset:
            found.append(f"lost: {append} was acknowledged at {append.offset}, and is at {place}")
    found += _out_of_order(history, places)
    for read in history.reads:
        if digest(final[:read.length]) != read.digest or read.length > len(final):
            found.append(f"changed: {read} did not see a prefix of the file")
    return found + _stale_reads(history)


def _out_of_order(history: History, places: dict[tuple[int, int], int]) -> list[str]:
    """Appends that ended before another one began and lie behind it."""
    found = []
    in_file = [(place, history.appends[name]) for name, place in sorted(places.items(), key=lambda item: item[1])]
    ends_later = float("inf")  # the earliest acknowledgement among the appends that lie further behind
    for place, append in reversed(in_file):
        if ends_later < append.begun:
            found.append(f"reordered: {append} at {place} began after one behind it had been acknowledged")
        if append.acknowledged is not None:
            ends_later = min(ends_later, append.acknowledged)
    return found


def _stale_reads(history: History) -> list[str]:
    found = []
    acknowledged = sorted((append.acknowledged or 0.0, (append.offset or 0) + RECORD_BYTES)
                          for append in history.acknowledged)
    reads = sorted(history.reads, key=lambda read: read.begun)
    reached, next_append = 0, 0
    for read in reads:
        while next_append < len(acknowledged) and acknowledged[next_append][0] < read.begun:
            reached = max(reached, acknowledged[next_append][1])
            next_append += 1
        if read.length < reached:
            found.append(f"stale: {read} missed what had been acknowledged up to {reached}")
    return found
