"""Background traffic that gives way to nobody: `python -m evaluation.flood ADDRESS BITS_PER_SECOND SECONDS`."""

from __future__ import annotations

import socket
import sys
import time

DATAGRAM_BYTES, DISCARD_PORT = 8000, 9
PAUSE_SECONDS = 0.005


def flood(address: str, rate_bps: float, seconds: float) -> int:
    """Send datagrams to where nobody listens; returns how many bytes."""
    begin, sent = time.monotonic(), 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while (now := time.monotonic()) < begin + seconds:
            for _ in range(int(rate_bps / 8 / DATAGRAM_BYTES * (now - begin)) - sent):
                sender.sendto(bytes(DATAGRAM_BYTES), (address, DISCARD_PORT))
                sent += 1
            time.sleep(PAUSE_SECONDS)
    return sent * DATAGRAM_BYTES


if __name__ == "__main__":
    flood(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
