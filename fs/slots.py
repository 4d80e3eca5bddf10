"""Where an inode's number says that it lies: the blocks of a namespace that several nameservers share.

The first 16 bits of a number are its slot. A file has the slot of the directory in which it was made, a new directory
one of its own by a hash. The 256 slots with the same first 8 bits are a block, the least that a nameserver owns: one
contiguous range of every kind of record that begins with a number. Where one nameserver owns everything all numbers
have slot 0, as those of namespaces that are older than slots.
"""

import re
from hashlib import blake2b
from ipaddress import IPv4Network
from typing import Any

from google.protobuf.message import Message

from speedwell.fs.file_status import SET_ID_BITS

BLOCKS = 256
SLOT_SHIFT, BLOCK_SHIFT = 48, 56
LOCAL_MASK = (1 << SLOT_SHIFT) - 1
NETWORK = IPv4Network("198.18.0.0/16")
"""On a fabric, each slot is an address, and the switches take requests to the owner of its block (RFC 2544)."""
ANY_OWNER = "slots"
"""In place of a nameserver's host in `HOST:PORT`: whoever owns what a request is about, by its slot's address."""
HASHED = 1 << (SLOT_SHIFT - 1)
"""Set in the numbers of directories that hash their own slot: no counter comes so far."""


ROUTED = frozenset({
    "Lookup", "List", "Create", "MakeDirectory", "MakeSymbolicLink", "MakeSpecial", "Link", "Remove", "Rename",
    "SetAttributes", "ListExtendedAttributes", "SetExtendedAttribute", "RemoveExtendedAttribute", "Truncate",
    "Commit"})
"""Requests that an owner answers for its blocks."""
_PATHS = {"Link": "destination", "Rename": "source"}
_SESSIONS = ("Remove", "Rename", "Commit")
_BEGINS_AT_INODE = re.compile(rb"/\0([0-9]{1,20})(?:/|$)")     # paths.of_inode, and what is below


def note_highest(highest: dict[int, int], number: int) -> None:
    """Keep by block the number that was given out last."""
    block = block_of(number)
    highest[block] = max(highest.get(block, 0), number, key=LOCAL_MASK.__and__)


def slot_of(number: int) -> int:
    """Of an inode, 0 to 65535."""
    return number >> SLOT_SHIFT


def block_of(number: int) -> int:
    """Of an inode, 0 to 255."""
    return number >> BLOCK_SHIFT


def beside(directory: int, local: int) -> int:
    """The number with the directory's slot."""
    return slot_of(directory) << SLOT_SHIFT | local


def hashed(directory: int, name: bytes, local: int) -> int:
    """The number of a new directory with that name; `local` differs with each that is made there."""
    digest = blake2b(b"%d %d %b" % (directory, local, name), digest_size=8).digest()
    return int.from_bytes(digest, "big") | HASHED


def addresses_of(block: int) -> IPv4Network:
    """Of a block's slots."""
    return IPv4Network((int(NETWORK.network_address) + (block << 8), 24))


def block_of_request(request: Message) -> int:
    """Whose owner answers a request: that of the directory in which something is looked up or changed, or of the
    inode itself. All else goes to the owner of block 0: what is held in a session, what dataservers are told of, what
    concerns the whole namespace, and paths from the root, of which nobody knows where they lead."""
    fields: Any = request
    name = request.DESCRIPTOR.name.removesuffix("Request")
    if name not in ROUTED or (name in _SESSIONS and fields.session) or (
            name == "SetAttributes" and fields.mode & SET_ID_BITS):
        return 0
    if name == "Commit" or (name == "Lookup" and fields.inode):
        return block_of(fields.inode)
    begins = _BEGINS_AT_INODE.match(getattr(fields, _PATHS.get(name, "path")))
    number = int(begins[1]) if begins else 0
    return block_of(number) if number < 1 << 64 else 0
