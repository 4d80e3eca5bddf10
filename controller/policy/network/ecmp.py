"""Equal-cost multi-path: spread flows over paths by a hash of their headers (RFC 2992)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from speedwell.controller.policy.errors import NoPath
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path

_KEY_BITS = 64


def ecmp_path(paths: Sequence[Path], five_tuple: FiveTuple) -> Path:
    """The path that a flow takes: always the same one for the same flow and the same paths.

    Hash-threshold (RFC 2992, section 2): the key space is cut into as many equal regions as there are
    paths, so that a path that goes away moves only the flows whose region's borders shift. The hash
    does not change between processes or Python versions. Raises NoPath if there are no paths.
    """
    if not paths:
        raise NoPath(f"no path from {five_tuple.source} to {five_tuple.destination}")
    return paths[_key(five_tuple) * len(paths) >> _KEY_BITS]


def _key(five_tuple: FiveTuple) -> int:
    header = (
        f"{five_tuple.source} {five_tuple.destination} {five_tuple.protocol}"
        f" {five_tuple.source_port} {five_tuple.destination_port}"
    )
    return int.from_bytes(blake2b(header.encode(), digest_size=_KEY_BITS // 8).digest(), "big")
