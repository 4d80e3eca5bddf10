"""Field types of the REST interface: what an address, a port or a datapath id may look like from outside."""

import ipaddress
import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_HEX = re.compile(r"[0-9a-fA-F]{1,16}")
_DPID_FORMS = r"^(0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{1,16}|[0-9]{17,20})$"


class InputModel(BaseModel):
    """A request: unknown fields and values of the wrong type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class OutputModel(BaseModel):
    """An answer: it has the declared fields and no others."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


@lru_cache(maxsize=1 << 14)
def unicast_ipv4(text: str) -> str:
    """`text` if it is an IPv4 address that one host on a fabric can have; raises ValueError otherwise."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError("must be an IPv4 address") from None
    if address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved:
        raise ValueError("must be the address of a host on the fabric")
    return str(address)


def parse_dpid(text: str) -> str:
    """A datapath id in any of the accepted forms as 16 lower-case hex digits.

    16 hex digits or a leading 0x mean hex; otherwise digits alone are decimal, anything else is hex.
    Raises ValueError if it is none of them or does not fit 64 bits.
    """
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    if len(digits) == 16 or digits is not text or not digits.isdecimal():
        if not _HEX.fullmatch(digits):
            raise ValueError("Not a datapath id: give 16 hex digits, 0x and hex digits, or a decimal number")
        return f"{int(digits, 16):016x}"
    if not digits.isascii() or len(digits) > 20 or int(digits) >= 1 << 64:
        raise ValueError("Not a datapath id: it does not fit 64 bits")
    return f"{int(digits):016x}"


Ipv4 = Annotated[str, AfterValidator(unicast_ipv4), Field(json_schema_extra={"format": "ipv4"})]
Port = Annotated[int, Field(ge=1, le=65535, description="A TCP port.")]
DpidInput = Annotated[str, BeforeValidator(parse_dpid), WithJsonSchema({
    "type": "string", "pattern": _DPID_FORMS,
    "description": "A datapath id: 16 hex digits or 0x… are hex, other digits alone are decimal."})]
Dpid = Annotated[str, Field(pattern="^[0-9a-f]{16}$", description="A datapath id, always 16 hex digits.")]
Node = Annotated[str, Field(description="A node of the network: a switch's dpid (16 hex digits) or a host's IP.")]
NodeName = Annotated[str, Field(description="The node's name for people; that of a host is from the setting "
                                            "`hosts_file`, or else its IP.")]
