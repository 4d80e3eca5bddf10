"""Addresses as users write them."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from speedwell.fs.errors import InvalidArgument


def parse_address(text: str, field: str, lowest_port: int = 1) -> tuple[str, int]:
    """("host", port) of "HOST:PORT" or "[v6 address]:PORT"; `lowest_port` 0 allows "any free port".

    Raises InvalidArgument, which names `field`.
    """
    host, separator, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    if not (separator and is_host(host) and is_bracketed == (":" in host) and port.isascii() and port.isdigit()
            and lowest_port <= int(port) <= 65535):
        raise InvalidArgument(f"{field}: {text!r} is not HOST:PORT with a port from {lowest_port} to 65535")
    return host, int(port)


def parse_url(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a controller's. Raises InvalidArgument."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")     # a name of which the resolver can be asked
    except ValueError:
        host = ""
    if not is_host(host) or parts.scheme not in ("http", "https") or parts.path not in (
            "", "/") or parts.query or not url.isprintable():
        raise InvalidArgument(f"controller: {url!r} is not http://HOST[:PORT] or https://HOST[:PORT]")
    return parts.scheme, host, port or (443 if parts.scheme == "https" else 80)


def is_host(text: str) -> bool:
    """Whether it may be a host's name or address."""
    return is_ip(text) or (bool(text) and text.isprintable() and not set(text) & set(" []/@,:"))


def bracketed(host: str) -> str:
    """An IP address, as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def is_ip(text: str) -> bool:
    """Whether it is an address of IPv4 or IPv6."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
