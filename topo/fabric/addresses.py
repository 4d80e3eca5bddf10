"""The address plan of a fabric.

Hosts: `10.{pod}.{rack}.{host + 1}` in 10/8, with a MAC address that spells the same four bytes.
Management, out of band: 10.255.0.0/16; 10.255.0.1 is the machine itself, with controller and nameserver.
"""

from ipaddress import IPv4Network

FABRIC_NETWORK = IPv4Network("10.0.0.0/8")
MANAGEMENT_NETWORK = IPv4Network("10.255.0.0/16")
MACHINE_ADDRESS = "10.255.0.1"
KEY_NETWORK = IPv4Network("100.64.0.0/10")
"""Addresses of metadata keys, which are no host's: a request goes to a gateway that nobody is."""
SLOT_NETWORK = IPv4Network("198.18.0.0/16")
"""Likewise of the slots of a namespace that several nameservers own (`speedwell.fs.slots`)."""
KEY_GATEWAY, KEY_GATEWAY_MAC = "169.254.100.64", "02:53:70:64:00:40"

MAX_PODS = 255  # pod 255 would be the management network
MAX_RACKS_PER_POD = 256
MAX_HOSTS_PER_RACK = 254

_HOSTS_BLOCK = 1
_SWITCHES_BLOCK = 128
_ADDRESSES_PER_BLOCK = 250
MAX_HOSTS = (_SWITCHES_BLOCK - _HOSTS_BLOCK) * _ADDRESSES_PER_BLOCK
MAX_SWITCHES = (256 - _SWITCHES_BLOCK) * _ADDRESSES_PER_BLOCK


def host_address(pod: int, rack: int, host: int) -> str:
    """The fabric address of the host with these indices, counted from 0."""
    return f"10.{pod}.{rack}.{host + 1}"


def host_mac(pod: int, rack: int, host: int) -> str:
    """A locally administered MAC address that holds the host's fabric address."""
    return f"02:00:0a:{pod:02x}:{rack:02x}:{host + 1:02x}"


def host_management_address(index: int) -> str:
    """The management address of the host with this index in the whole fabric."""
    return _management_address(_HOSTS_BLOCK, index)


def switch_management_address(index: int) -> str:
    """The management address of the switch with this index in the whole fabric."""
    return _management_address(_SWITCHES_BLOCK, index)


def _management_address(first_block: int, index: int) -> str:
    return f"10.255.{first_block + index // _ADDRESSES_PER_BLOCK}.{index % _ADDRESSES_PER_BLOCK + 1}"
