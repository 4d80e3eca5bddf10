"""What hosts are called, from a file as /etc/hosts is."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address
from pathlib import Path

from speedwell.controller.errors import InvalidSettings


def read_host_names(file: Path) -> dict[str, str]:
    """The first name of each IPv4 address in a hosts file (hosts(5)); the first line with an address counts.

    Raises InvalidSettings, naming the file and the line, for one that cannot be read or is no hosts file.
    """
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise InvalidSettings(f"setting 'hosts_file': cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidSettings(f"setting 'hosts_file': {file} is no text in UTF-8") from None
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        address, *of_address = line.partition("#")[0].split() or [""]
        if not address or ":" in address:
            continue
        try:
            IPv4Address(address)
        except AddressValueError:
            raise InvalidSettings(f"setting 'hosts_file': line {number} of {file} does not begin with an "
                                  "address") from None
        if not of_address:
            raise InvalidSettings(f"setting 'hosts_file': line {number} of {file} has no name")
        names.setdefault(address, of_address[0])
    return names
