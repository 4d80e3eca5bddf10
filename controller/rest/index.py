"""What `/` answers: where a reader, or a program, goes on from."""

from importlib.metadata import version

from pydantic import Field

from speedwell.controller.rest.fields import OutputModel

VERSION = version("speedwell")
"""Read once: looking it up opens a file, and there may be none to be had."""


class Endpoint(OutputModel):
    """One URL and what its methods do."""

    href: str = Field(description="Relative to this one; {name} stands for a parameter (RFC 6570).")
    methods: dict[str, str] = Field(description="What each method does, in a line.")


class Index(OutputModel):
    title: str
    version: str
    description: str = Field(description="Where the whole interface is described.")
    endpoints: list[Endpoint]
