"""Servers without certificates believe everybody, so they listen where no other machine reaches them.

With `--insecure` on loopback; with `--insecure=fabric` also on the addresses of an emulated network: those of
interfaces with no hardware behind them, as far as the kernel tells.
"""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import click

from speedwell.fs.errors import InvalidArgument

VARIABLE = "SPEEDWELL_INSECURE"
LOOPBACK, FABRIC = "loopback", "fabric"
_EMULATED = ("veth", "bridge", "dummy")
"""Kinds of interfaces of which emulated networks are made (ip-link(8))."""

option = click.option(
    "--insecure", type=click.Choice([LOOPBACK, FABRIC]), is_flag=False, flag_value=LOOPBACK, envvar=VARIABLE,
    metavar="[fabric]", help="Start without --identity, on loopback alone, where every user of this machine may do "
    "anything; `--insecure=fabric` also on an emulated network.")


def check(identity: Path | None, insecure: str | None, *, no_tokens: bool = False, **hosts: str) -> None:
    """Of a server that would listen on `hosts`, by option. Raises InvalidArgument where it may not without
    an identity, or has one and would ask for `no_tokens`."""
    if identity is not None:
        if no_tokens:
            raise InvalidArgument("--no-tokens: everybody who reaches the data channel would be served; it goes with "
                                  "--insecure, not with --identity")
        return
    if insecure is None:
        raise InvalidArgument("--identity: name this server's certificates, from `speedwell identity issue`, or say "
                              "--insecure: everybody who reaches it may do anything then")
    for name, host in hosts.items():
        option_name = f"--{name.replace('_', '-')}"
        addresses = _addresses(host)
        if addresses and all(each.is_loopback for each in addresses):
            continue
        if insecure != FABRIC:
            raise InvalidArgument(f"{option_name}: other machines may reach {host}: with --insecure name a loopback "
                                  "address such as 127.0.0.1, or give it an --identity")
        if outside := _outside(addresses):
            raise InvalidArgument(f"{option_name}: {host} is on {outside}, which is no emulated network: other "
                                  "machines may reach it; give it an --identity")


def _addresses(host: str) -> set[IPv4Address | IPv6Address]:
    """As who listens there finds them; none where they are not known: that one says why it cannot."""
    try:
        found = [entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return set()
    return {_plain(str(each)) for each in found}


def _plain(text: str) -> IPv4Address | IPv6Address:
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _outside(addresses: set[IPv4Address | IPv6Address]) -> str:
    """The name of an interface with one of them that is not of an emulated network; empty if there is none."""
    from pyroute2 import IPRoute  # takes 0.1 s

    with IPRoute() as netlink:
        links = {link["index"]: link for link in netlink.get_links()}
        there = [(each["index"], each.get_attr("IFA_LOCAL") or each.get_attr("IFA_ADDRESS"))
                 for each in netlink.get_addr()]    # of a point-to-point link the latter is the other end's
    real = {index for index, link in links.items()
            if _kind(link) not in _EMULATED and link.get_attr("IFLA_IFNAME") != "lo"}
    real |= {links[index].get_attr("IFLA_MASTER") for index in set(real)}     # a bridge to it
    is_any = any(each.is_unspecified for each in addresses)
    return next((str(links[index].get_attr("IFLA_IFNAME")) for index, address in there
                 if index in real and (is_any or _plain(address) in addresses)), "")


def _kind(link: "object") -> str | None:
    info = link.get_attr("IFLA_LINKINFO")   # type: ignore[attr-defined]
    return info.get_attr("IFLA_INFO_KIND") if info is not None else None
