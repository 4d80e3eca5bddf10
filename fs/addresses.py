"""Addresses as users write them."""

from fs.errors import InvalidArgument


def parse_address(text: str, field: str, lowest_port: int = 1) -> tuple[str, int]:
    """("host", port) of "HOST:PORT" or "[v6 address]:PORT"; `lowest_port` 0 allows "any free port".

    Raises InvalidArgument, which names `field`.
    """
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not (port.isascii() and port.isdigit()) or not lowest_port <= int(port) <= 65535:
        raise InvalidArgument(f"{field}: {text!r} is not HOST:PORT with a port from {lowest_port} to 65535")
    return host, int(port)
