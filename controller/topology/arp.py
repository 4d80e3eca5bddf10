"""ARP for IPv4 over Ethernet (RFC 826), and the addresses of an IPv4 packet."""

from __future__ import annotations

import struct
from ipaddress import AddressValueError, IPv4Address
from typing import NamedTuple

REQUEST, REPLY = 1, 2
NO_ADDRESS = "0.0.0.0"
"""The sender of a probe (RFC 5227): nobody takes its address for a host's."""
NO_MAC = "00:00:00:00:00:00"
BROADCAST_MAC = "ff:ff:ff:ff:ff:ff"
CONTROLLER_MAC = "02:53:57:00:00:01"

_ETHERNET = struct.Struct("!6s6sH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")


class Packet(NamedTuple):
    """One ARP packet. MAC addresses in lower case with colons, IPv4 addresses dotted."""

    operation: int
    sender_mac: str
    sender_ip: str
    target_mac: str
    target_ip: str


def build(packet: Packet) -> bytes:
    """The Ethernet frame: requests to everybody, replies to the target."""
    destination = BROADCAST_MAC if packet.operation == REQUEST else packet.target_mac
    header = _ETHERNET.pack(_mac_bytes(destination), _mac_bytes(packet.sender_mac), 0x0806)
    body = _ARP.pack(1, 0x0800, 6, 4, packet.operation,
                     _mac_bytes(packet.sender_mac), IPv4Address(packet.sender_ip).packed,
                     _mac_bytes(packet.target_mac), IPv4Address(packet.target_ip).packed)
    return (header + body).ljust(60, b"\0")


def parse(frame: bytes) -> Packet | None:
    """The ARP packet in a frame; None if it holds none, or a damaged one."""
    if len(frame) < _ETHERNET.size + _ARP.size or frame[12:14] != b"\x08\x06":
        return None
    hardware, protocol, hardware_length, protocol_length, operation, sender_mac, sender_ip, target_mac, target_ip = \
        _ARP.unpack_from(frame, _ETHERNET.size)
    if (hardware, protocol, hardware_length, protocol_length) != (1, 0x0800, 6, 4):
        return None
    return Packet(operation, _mac_text(sender_mac), str(IPv4Address(sender_ip)),
                  _mac_text(target_mac), str(IPv4Address(target_ip)))


def parse_ipv4(frame: bytes) -> tuple[str, str, str] | None:
    """(source MAC, source address, destination address) of a frame with an IPv4 packet, else None."""
    if len(frame) < _ETHERNET.size + 20 or frame[12:14] != b"\x08\x00":
        return None
    return _mac_text(frame[6:12]), str(IPv4Address(frame[26:30])), str(IPv4Address(frame[30:34]))


def is_host_address(ip: str) -> bool:
    """Whether this can be one host's address on the fabric."""
    try:
        address = IPv4Address(ip)
    except AddressValueError:
        return False
    return not (address.is_multicast or address.is_loopback or address.is_reserved or address.is_link_local
                or int(address) >> 24 == 0)


def is_host_mac(mac: str) -> bool:
    """Whether this can be one interface's MAC address."""
    return mac != NO_MAC and not int(mac[:2], 16) & 1


def _mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _mac_text(mac: bytes) -> str:
    return bytes(mac).hex(":")
