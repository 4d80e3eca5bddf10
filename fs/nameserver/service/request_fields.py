"""Checks of what arrives in requests. Each raises InvalidArgument (or a subclass) that names the field."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from speedwell.fs import paths
from speedwell.fs.errors import InvalidArgument, NameTooLong
from speedwell.fs.proto.speedwell_pb2 import DirectoryUse

MAX_MODE = 0o7777
MAX_OWNER = 2**32 - 2  # the last number means "unchanged" to chown
MAX_SIZE_BYTES = 2**63 - 1
MAX_FILES = 2**63 - 1
MAX_TIME_NS = 2**63 - 1
MAX_REPLICATION = 16
MIN_CHUNK_BYTES = 1024
MAX_CHUNK_BYTES = 1 << 40
MAX_TEXT = 253  # the longest host name
MAX_DATASERVER_ID = 200
MAX_HOSTS = 16
MAX_DIRECTORIES = 256
MAX_DIRECTORY_TEXT = 8192
LIST_LIMIT = 1000
LIST_BYTES = 512 << 10   # a frame has room for twice that
MAX_TARGET_BYTES = 4095   # with its NUL a symbolic link's target fits Linux's longest path
MAX_ATTRIBUTE_NAME_BYTES = 255
MAX_ATTRIBUTE_BYTES = 65536   # as on Linux

P = TypeVar("P")
_FILE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def page(parts: Iterable[P], size: Callable[[P], int]) -> tuple[list[P], bool]:
    """As many of `parts`, of so many bytes each, as one answer takes, one at least, and whether there are more."""
    fitting: list[P] = []
    left = LIST_BYTES
    for part in parts:
        left -= size(part)
        if left < 0 and fitting:
            return fitting, True
        fitting.append(part)
    return fitting, False


def path(value: bytes, field: str = "path") -> bytes:
    paths.components(value, field)
    return value


def name(value: bytes, field: str) -> bytes:
    """A name as a place in a listing; empty means the beginning."""
    if len(value) > paths.MAX_NAME_BYTES:
        raise NameTooLong(f"{field}: {len(value)} bytes, at most {paths.MAX_NAME_BYTES} are allowed")
    if b"/" in value or b"\0" in value:
        raise InvalidArgument(f"{field}: a name has no / and no NUL")
    return value


def number(value: int, field: str, maximum: int, minimum: int = 0) -> int:
    if not minimum <= value <= maximum:
        raise InvalidArgument(f"{field}: {value} is not between {minimum} and {maximum}")
    return value


def mode(value: int, field: str = "mode") -> int:
    if value > MAX_MODE:
        raise InvalidArgument(f"{field}: {value:#o} has more than permission bits (at most {MAX_MODE:#o})")
    return value


def owner(value: int, field: str) -> int:
    return number(value, field, MAX_OWNER)


def replication(value: int, default: int) -> int:
    return number(value, "replication", MAX_REPLICATION) or default


def chunk_size(value: int, default: int) -> int:
    """Bytes; 0 means the default."""
    return number(value, "chunk_size", MAX_CHUNK_BYTES, MIN_CHUNK_BYTES) if value else default


def text(value: str, field: str, *, required: bool = False) -> str:
    if required and not value:
        raise InvalidArgument(f"{field}: is empty")
    if len(value) > MAX_TEXT:
        raise InvalidArgument(f"{field}: {len(value)} characters, at most {MAX_TEXT} are allowed")
    if not value.isprintable():
        raise InvalidArgument(f"{field}: {value!r} has characters that cannot be printed")
    return value


def hosts(values: Sequence[str], field: str) -> tuple[str, ...]:
    if len(values) > MAX_HOSTS:
        raise InvalidArgument(f"{field}: {len(values)} addresses, at most {MAX_HOSTS} are allowed")
    return tuple(text(value, f"{field}[{index}]", required=True) for index, value in enumerate(values))


def directories(values: Sequence[DirectoryUse], field: str) -> Sequence[DirectoryUse]:
    if len(values) > MAX_DIRECTORIES:
        raise InvalidArgument(f"{field}: {len(values)}, at most {MAX_DIRECTORIES} are allowed")
    for index, use in enumerate(values):
        where = f"{field}[{index}]"
        number(use.available_bytes, f"{where}.available_bytes", number(
            use.capacity_bytes, f"{where}.capacity_bytes", MAX_SIZE_BYTES))
        number(len(use.path) + len(use.disk) + len(use.failure), f"{where}: characters", MAX_DIRECTORY_TEXT)
    return values


def dataserver_id(value: str, field: str) -> str:
    if not 1 <= len(value) <= MAX_DATASERVER_ID or not value.isprintable():
        raise InvalidArgument(f"{field}: {value[:300]!r} is not an id of 1 to {MAX_DATASERVER_ID} printable "
                              "characters")
    return value


def replicas(values: Sequence[str], replication: int) -> tuple[str, ...]:
    """The ids of the dataservers that a file is to be on; `replication` is what the request says, 0 for nothing."""
    if not values:
        return ()
    if replication not in (0, len(values)):
        raise InvalidArgument(f"replication: {replication} does not go with {len(values)} replicas")
    if len(values) > MAX_REPLICATION:
        raise InvalidArgument(f"replicas: {len(values)} are named, at most {MAX_REPLICATION} are allowed")
    if len(set(values)) < len(values):
        raise InvalidArgument("replicas: a dataserver is named twice")
    return tuple(dataserver_id(value, f"replicas[{index}]") for index, value in enumerate(values))


def file_id(value: str, field: str = "file_id") -> bytes:
    """The 16 bytes of a UUID that is written in lower case with dashes."""
    if not _FILE_ID.fullmatch(value):
        raise InvalidArgument(f"{field}: {value[:100]!r} is not a UUID in lower case with dashes")
    return bytes.fromhex(value.replace("-", ""))


def file_id_text(value: bytes) -> str:
    digits = value.hex()    # uuid.UUID takes four times as long
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def link_target(value: bytes) -> bytes:
    if not value or b"\0" in value:
        raise InvalidArgument("target: a symbolic link's target is not empty and has no NUL")
    if len(value) > MAX_TARGET_BYTES:
        raise NameTooLong(f"target: {len(value)} bytes, at most {MAX_TARGET_BYTES} are allowed")
    return value


def attribute_name(value: bytes) -> bytes:
    if not 1 <= len(value) <= MAX_ATTRIBUTE_NAME_BYTES or b"\0" in value:
        raise InvalidArgument(f"extended_attribute.name: {paths.display(value)!r} is not 1 to "
                              f"{MAX_ATTRIBUTE_NAME_BYTES} bytes without NUL")
    return value


def attribute_value(value: bytes) -> bytes:
    if len(value) > MAX_ATTRIBUTE_BYTES:
        raise InvalidArgument(f"extended_attribute.value: {len(value)} bytes, at most {MAX_ATTRIBUTE_BYTES} are "
                              "allowed")
    return value


def session(value: int) -> int:
    return number(value, "session", 2**64 - 1, 1)
