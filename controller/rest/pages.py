"""Long lists in pages: `?offset=` and `?limit=` in, `total` and `next_offset` out."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, TypeVar

from pydantic import Field

from speedwell.controller.rest.fields import OutputModel

LIMIT = 200
Offset = Annotated[int, Field(ge=0, le=1 << 20, description="How many to leave out, from the first on.")]
Limit = Annotated[int, Field(ge=1, le=500, description="How many to tell at most.")]

OverLink = Annotated[str | None, Field(
    pattern=r"^[0-9a-f.]{7,16},[0-9a-f.]{7,16}$",
    description="Two nodes, `NODE,NODE`: only what runs over the link between them, in either direction.")]

T = TypeVar("T")


class Page(OutputModel):
    """A part of a list."""

    total: int = Field(ge=0, description="How many there are in all.")
    next_offset: int | None = Field(description="The `offset` of what comes next; null with the last.")


def is_over(link: str, nodes: Sequence[str]) -> bool:
    """Whether a path crosses a link, given as `OverLink`, in either direction."""
    one, other = link.split(",")
    return not {(one, other), (other, one)}.isdisjoint(pairwise(nodes))


def page_of(items: Sequence[T], offset: int, limit: int) -> tuple[Sequence[T], dict[str, Any]]:
    """What a page has, and the fields of `Page`."""
    end, total = offset + limit, len(items)
    return items[offset:end], {"total": total, "next_offset": end if end < total else None}
