"""What `/v1/storage` takes and gives."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from speedwell.controller.rest.fields import InputModel, NodeName, OutputModel
from speedwell.controller.rest.pages import Page

MAX_DATASERVERS, MAX_WARNINGS, MAX_WARNING = 4096, 16, 1000
Name = Annotated[str, Field(min_length=1, max_length=300)]
Bytes = Annotated[int, Field(ge=0, le=1 << 62)]
Number = Annotated[int, Field(ge=0, le=1 << 62)]


class _Dataserver(BaseModel):
    id: Name
    host: Name = Field(description="Its address.")
    alive: bool
    draining: bool = Field(description="Whether it is being emptied.")
    heard_seconds_ago: float = Field(ge=0, description="By the nameserver that leads, when that reported.")
    capacity_bytes: Bytes
    available_bytes: Bytes = Field(description="For new files.")
    replicas: Number = Field(description="That files have on it.")
    failed_directories: Number


class _Namespace(BaseModel):
    dataservers_known: Number
    dataservers_alive: Number
    files: Number
    directories: Number
    capacity_bytes: Bytes = Field(description="Of all disks of live dataservers.")
    available_bytes: Bytes
    replication: Number = Field(description="Replicas of a file, unless its creator wanted another number.")
    min_replicas: Number = Field(description="That a change needs.")
    unwritable_files: Number = Field(description="With fewer live replicas than that.")
    warnings: list[Annotated[str, Field(max_length=MAX_WARNING)]] = Field(
        max_length=MAX_WARNINGS, description="What an operator has to decide.")


class DataserverReport(_Dataserver, InputModel):
    """As the nameserver that leads knows it."""


class NamespaceReport(_Namespace, InputModel):
    dataservers: list[DataserverReport] = Field(
        max_length=MAX_DATASERVERS, description="Dead ones first, then those with failed directories, those that are "
        "being emptied, the fullest; as many as fit.")


class NameserverReport(InputModel):
    """A nameserver says that it is there."""

    address: Name = Field(description="HOST:PORT.")
    namespace: NamespaceReport | None = Field(description="null: it does not lead.")


class Nameserver(OutputModel):
    address: str
    state: Literal["leads", "stands by", "silent"]
    heard_seconds_ago: float


class Namespace(_Namespace, OutputModel):
    """As the nameserver said it that led last."""


class Dataserver(_Dataserver, OutputModel):
    host_name: NodeName


class Storage(Page):
    nameservers: list[Nameserver]
    namespace: Namespace | None = Field(description="null: no nameserver has been heard of that leads.")
    dataservers: list[Dataserver] = Field(description="As the nameserver said them: those that need care first.")
