"""What the network interface under a connection can do."""

import ctypes
import fcntl
import socket
import struct
from functools import lru_cache

# linux/sockios.h and linux/ethtool.h
_SIOCGIFADDR = 0x8915
_SIOCETHTOOL = 0x8946
_ETHTOOL_GTXCSUM = 0x16
_NAME_BYTES = 16


@lru_cache(maxsize=64)
def checksums_in_hardware(address: str) -> bool:
    """Whether the interface with the local IPv4 `address` computes the checksums of what is sent.

    True for an address of no known interface (another address of the loopback network, IPv6).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = next((name for _, name in socket.if_nameindex() if _address(control, name) == address), None)
        if name is None:
            return True
        value = (ctypes.c_uint32 * 2)(_ETHTOOL_GTXCSUM, 0)
        request = struct.pack(f"{_NAME_BYTES}sP", name.encode(), ctypes.addressof(value))
        try:
            fcntl.ioctl(control, _SIOCETHTOOL, request)
        except OSError:
            return True
        return bool(value[1])


def _address(control: socket.socket, name: str) -> str:
    try:
        answer = fcntl.ioctl(control, _SIOCGIFADDR, struct.pack(f"{_NAME_BYTES}s24x", name.encode()))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])
