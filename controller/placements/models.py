"""What `/v1/placements` takes and gives."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from speedwell.controller.rest.fields import InputModel, Ipv4, NodeName, OutputModel
from speedwell.controller.rest.pages import Page

MAX_FILE_BYTES = 1 << 50
MAX_FILES, MAX_CANDIDATES, MAX_REPLICAS, MAX_SOURCES = 64, 4096, 64, 16
MAX_READS = 1e6


class Candidate(InputModel):
    """A machine that may take a replica. `rack` and `pod` left out: as the fabric has them."""

    host: Ipv4
    rack: str | None = Field(default=None, max_length=255)
    pod: str | None = Field(default=None, max_length=255)
    free_bytes: int | None = Field(default=None, ge=0, description="Space left; null: enough for everything.")
    disk_bps: float | None = Field(default=None, gt=0, description="What its disk writes, in bits/s; null: whatever "
                                   "the network brings.")


def _each_host_once(candidates: list[Candidate]) -> list[Candidate]:
    if len({candidate.host for candidate in candidates}) < len(candidates):
        raise ValueError("The same host is given twice")
    return candidates


class FileToPlace(InputModel):
    """A file that is about to be written: by whom, how much, and where its replicas may go."""

    writer: Ipv4
    size_bytes: int = Field(ge=0, le=MAX_FILE_BYTES, description="As expected; it decides how long the links of the "
                            "transfer are expected to be busy.")
    replicas: int = Field(default=3, ge=1, le=MAX_REPLICAS)
    least_racks: int | None = Field(default=None, ge=1, le=MAX_REPLICAS, description="Different racks among the "
                                    "replicas'; null: 2 if there are 2 replicas or more.")
    least_pods: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Different pods among the replicas'.")
    candidates: list[Candidate] | None = Field(
        default=None, min_length=1, max_length=MAX_CANDIDATES,
        description="Null: those that the request has for all of its files.")

    sources: list[Ipv4] = Field(
        default=[], max_length=MAX_SOURCES, description="Hosts that could send the bytes, where that is not the "
        "writer alone. sinbad-plus chooses among those that are attached; for other policies the writer sends.")
    expected_reads: float = Field(
        default=0.0, ge=0, le=MAX_READS, description="How often the file is expected to be read as a whole soon; for "
        "sinbad-plus.")

    @property
    def racks(self) -> int:
        """The least number of racks."""
        return min(2, self.replicas) if self.least_racks is None else self.least_racks

    @model_validator(mode="after")
    def _constraints_fit(self) -> Self:
        if not self.least_pods <= self.racks <= self.replicas:
            raise ValueError(f"{self.replicas} replicas are in {self.replicas} racks at most, and in no more pods "
                             f"than racks: least_racks is {self.racks}, least_pods is {self.least_pods}")
        if self.candidates is not None:
            _each_host_once(self.candidates)
        return self


class PlacementsRequest(InputModel):
    """Files that are created at the same time are best asked for together: the smallest is placed first."""

    files: list[FileToPlace] = Field(min_length=1, max_length=MAX_FILES)
    candidates: Annotated[list[Candidate] | None, AfterValidator(
        lambda candidates: candidates and _each_host_once(candidates))] = Field(
        default=None, min_length=1, max_length=MAX_CANDIDATES, description="Of the files that name none themselves.")

    @model_validator(mode="after")
    def _all_have_candidates(self) -> Self:
        if self.candidates is None and any(file.candidates is None for file in self.files):
            raise ValueError("A file names no candidates, and the request has none for all")
        return self


class Destination(OutputModel):
    """A machine that gets a replica."""

    host: Ipv4
    host_name: NodeName
    residual_bps: float | None = Field(description="What was left at the tightest place on the way into it, its disk "
                                       "included, in bits/s; null if nothing bounds it.")


class Refusal(OutputModel):
    """Why a file has no destinations."""

    constraint: str = Field(description="What cannot be fulfilled: hosts, racks, pods or space.")
    detail: str


class Placement(OutputModel):
    """Where the replicas of one file go, in the order in which they pass its bytes on."""

    id: str | None = Field(description="Under which its links are expected to be busy; null if it was refused.")
    destinations: list[Destination]
    source: Ipv4 | None = Field(description="Who sends the bytes; null if it was refused.")
    source_name: NodeName | None
    rate_bps: float | None = Field(description="What the chain is expected to carry, in bits/s; null: no bound.")
    expected_seconds: float = Field(ge=0, description="For how long its links are expected to be busy.")
    passed_over: dict[str, str] = Field(description="Why the other candidates were not taken, by host.")
    passed_over_names: dict[str, NodeName] = Field(description="What these hosts are called.")
    refused: Refusal | None


class Placements(OutputModel):
    """In the order of the request's files."""

    placements: list[Placement]


class ExpectedTransfer(OutputModel):
    """A placement whose transfer is expected to run."""

    id: str
    writer: Ipv4
    writer_name: NodeName
    destinations: list[Ipv4]
    destination_names: list[NodeName]
    size_bytes: int
    rate_bps: float | None
    age_seconds: float = Field(ge=0)
    expected_seconds: float = Field(ge=0)
    flows: int = Field(ge=0, description="The reported flows that carry its bytes now: GET /v1/flows has them.")


class ExpectedTransfers(Page):
    placements: list[ExpectedTransfer]
