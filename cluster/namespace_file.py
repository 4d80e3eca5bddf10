"""A namespace as a file: a JSON document a line. docs/reference/namespace-store.md has the format.

The first line says what it is, the last one how many records there are and their checksum. Records are the messages
of fs/proto/speedwell.proto as protobuf writes JSON, but names and targets of links are text; bytes that are not UTF-8
stand in it as lone surrogates, as Python has them in file names.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from crc32c import crc32c
from google.protobuf import json_format

from speedwell.cluster.errors import InvalidDump
from speedwell.fs.proto import speedwell_pb2 as pb

FORMAT, VERSION = "speedwell namespace", 1
_TEXTS = (("entry", "name"), ("inode", "inode", "target"))


def write(parts: Iterable[pb.DumpReply], stream: IO[bytes], advance: Callable[[int], None]) -> int:
    """Write a dump to a stream; returns the number of records. `advance` hears of records that are written."""
    count = total = 0

    def put(document: dict[str, Any]) -> None:
        nonlocal total
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        total = crc32c(line, total)
        stream.write(line)

    for number, part in enumerate(parts):
        if not number:
            put({"format": FORMAT, "version": VERSION, "namespace": part.namespace.hex(),
                 "next_inode": part.next_inode})
        for record in part.records:
            put(_document(record))
        count += len(part.records)
        advance(len(part.records))
    put({"records": count, "crc32c": f"{total:08x}"})
    return count


class NamespaceFile:
    """A dump to be read: `next_inode` is known at once, `records` may be gone through once."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        """Raises InvalidDump if the first line is not that of a dump this version reads."""
        self._lines = enumerate(stream, 1)
        self._total = 0
        header = self._parsed(*next(self._lines, (1, b"")))
        if header.get("format") != FORMAT:
            raise InvalidDump("line 1: this is not a dump of a namespace")
        if header.get("version") != VERSION:
            raise InvalidDump(f"line 1: the dump has version {header.get('version')}, this command reads {VERSION}")
        if not isinstance(header.get("next_inode"), int) or not 0 < header["next_inode"] < 2**63:
            raise InvalidDump("line 1: next_inode is not a number of an inode")
        self.next_inode: int = header["next_inode"]

    def records(self) -> Iterator[pb.NamespaceRecord]:
        """All records. Raises InvalidDump naming the line that is wrong, at the latest after the last record."""
        count = 0
        for number, line in self._lines:
            before = self._total
            document = self._parsed(number, line)
            if "crc32c" in document:
                if document != {"records": count, "crc32c": f"{before:08x}"}:
                    raise InvalidDump(f"line {number}: the dump is not as it was written: its records or their "
                                      "checksum are other ones")
                if next(self._lines, None) is not None:
                    raise InvalidDump(f"line {number + 1}: something follows the end of the dump")
                return
            count += 1
            try:
                yield _record(document)
            except (json_format.ParseError, ValueError, TypeError, KeyError, AttributeError) as error:
                why = next(iter(str(error).splitlines()), "")       # protobuf goes on with what it knows
                raise InvalidDump(f"line {number}: this is no record of a dump ({why})") from None
        raise InvalidDump(f"the dump is cut off after {count} records: its last line is missing")

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        self._total = crc32c(line, self._total)
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidDump(f"line {number}: this is not JSON") from None
        if not isinstance(document, dict):
            raise InvalidDump(f"line {number}: this is not a JSON object")
        return document


def _document(record: pb.NamespaceRecord) -> dict[str, Any]:
    document: dict[str, Any] = json_format.MessageToDict(record, preserving_proto_field_name=True)
    _change_texts(document, lambda text: os.fsdecode(base64.b64decode(text)))
    return document


def _record(document: dict[str, Any]) -> pb.NamespaceRecord:
    """Raises what json_format and wrong types in the way raise."""
    _change_texts(document, lambda text: base64.b64encode(os.fsencode(text)).decode())
    return json_format.ParseDict(document, pb.NamespaceRecord())


def _change_texts(document: dict[str, Any], change: Callable[[str], str]) -> None:
    for *way, last in _TEXTS:
        place = document
        for key in way:
            place = place.get(key, {})
        if last in place:
            place[last] = change(place[last])
