"""The controller's settings: typed, validated once at the start, never changed afterwards."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    IPvAnyAddress,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from speedwell.controller.errors import InvalidSettings
from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.errors import UnknownPolicy
from speedwell.controller.policy.registry import Kind, replica_policy_beside
from speedwell.controller.validation import problems, reason
from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import InvalidArgument


def _datapath_id(entry: str) -> str:
    """An entry of `datapath_ids` as it is compared. Raises ValueError."""
    dpid, at, address = entry.lower().partition("@")
    if not re.fullmatch("[0-9a-f]{16}", dpid):
        raise ValueError(f"{dpid!r} is not a datapath id of 16 hexadecimal digits")
    if not at:
        return dpid
    try:
        return f"{dpid}@{ip_address(address)}"
    except ValueError:
        raise ValueError(f"{address!r} is not an IP address") from None


def _switch_ports(entry: str) -> str:
    """An entry of `host_ports` as it is compared. Raises ValueError."""
    found = re.fullmatch("([0-9a-f]{16}):([0-9]{1,10})(?:-([0-9]{1,10}))?", entry.lower())
    first, last = (int(found[2]), int(found[3] or found[2])) if found else (0, 0)
    if not found or not 1 <= first <= last:
        raise ValueError(f"{entry!r} is neither DPID:PORT nor DPID:FIRST-LAST, the datapath id in 16 hex digits")
    return f"{found[1]}:{first}-{last}"


def _endpoint(entry: str) -> str:
    try:
        parse_address(entry, "etcd")
    except InvalidArgument as error:
        raise ValueError(str(error)) from None
    return entry


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
DatapathId = Annotated[str, AfterValidator(_datapath_id)]
SwitchPorts = Annotated[str, AfterValidator(_switch_ports)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]


@dataclass(frozen=True)
class PolicyName:
    """Annotates a text: the name of a registered policy."""

    kind: Kind

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._require_known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(POLICIES.names(self.kind))}

    def _require_known(self, name: str) -> str:
        try:
            return POLICIES.get(self.kind, name).name
        except UnknownPolicy as error:
            raise ValueError(str(error)) from None


ReplicaPolicy = Annotated[str, PolicyName(Kind.REPLICA)]
PathPolicy = Annotated[str, PolicyName(Kind.PATH)]
CoflowPolicy = Annotated[str, PolicyName(Kind.COFLOW)]
PlacementPolicy = Annotated[str, PolicyName(Kind.PLACEMENT)]
TimeslicePolicy = Annotated[str, PolicyName(Kind.TIMESLICES)]


class Settings(BaseModel):
    """What an operator may set. Times are in seconds, rates in bits per second; a port of 0 means any free one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    openflow_host: IPvAnyAddress = Field(default="127.0.0.1", validate_default=True)
    openflow_port: Port = 6653
    rest_host: IPvAnyAddress = Field(default="127.0.0.1", validate_default=True)
    rest_port: Port = 8080
    rest_requests_per_second: Annotated[float, Field(ge=1, le=1e6)] = 2000.0
    """Of each identity that asks; more are answered with 429."""
    identity: Path | None = None
    """The directory of the controller's key and certificate: with one, REST is served and switches are met over TLS
    alone."""
    insecure: Literal["loopback", "fabric"] | None = None
    """Where to listen without an identity: `speedwell.fs.insecure`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    hosts_file: Path | None = None
    """What the hosts of the network are called, as in /etc/hosts; without one, hosts are named by their addresses."""

    etcd: tuple[Endpoint, ...] = ()
    """HOST:PORT of each member: there the controllers of one network agree on who leads. Empty: this one is alone."""
    etcd_identity: Path | None = None
    etcd_prefix: Annotated[str, Field(min_length=1, max_length=256)] = "/speedwell"
    url: Annotated[str, Field(pattern=r"^(https?://[!-~]+)?$")] = ""
    """Where clients ask this one of several controllers; empty: at `rest_host` and `rest_port`."""

    @field_validator("etcd", mode="before")
    @classmethod
    def _are_listed(cls, etcd: Any) -> Any:
        return tuple(etcd.split(",")) if isinstance(etcd, str) else etcd

    @model_validator(mode="after")
    def _is_found_again(self) -> Settings:
        if self.etcd and not (self.openflow_port and self.rest_port):
            raise ValueError("set openflow_port and rest_port: those of one of several controllers must not change")
        if self.etcd and not self.url and self.rest_host.is_unspecified:
            raise ValueError(f"url is missing: clients cannot be sent to rest_host {self.rest_host}")
        return self

    @property
    def url_for_others(self) -> str:
        host = f"[{self.rest_host}]" if self.rest_host.version == 6 else self.rest_host
        return self.url or f"{'https' if self.identity else 'http'}://{host}:{self.rest_port}"

    placement_policy: PlacementPolicy = POLICIES.default(Kind.PLACEMENT)
    poll_interval_seconds: Seconds = 1.0
    read_idle_timeout_seconds: Annotated[int, Field(ge=1, le=65535)] = 30

    default_capacity_bps: Annotated[float, Field(ge=1e3, le=1e15)] = 1e9
    """For a port whose switch tells neither by OVSDB nor by OpenFlow how fast it is."""
    metadata_entries: Annotated[int, Field(ge=16, le=1 << 20)] = 2048
    """How many entries metadata servers may cost each switch; what needs more is refused."""
    ovsdb_port: Annotated[int, Field(ge=1, le=65535)] = 6640
    ovsdb_interval_seconds: Seconds = 30.0

    queues: Literal["none", "mincof", "priorities"] = "none"
    """Into which queues the ports between switches are sliced: docs/reference/switch-tables.md."""
    trust_dscp: bool = False
    """Default traffic goes in the class that is its DSCP (0 to 7): only where an agent on each host sets it."""
    coflow_key_file: Path | None = None
    """The key that applications sign their reports with; without one, no coflows are scheduled."""
    coflow_host: IPv4Address = Field(default="127.0.0.1", validate_default=True)
    coflow_port: Port = 6655
    coflow_expiry_seconds: Seconds = 5.0
    """A coflow that has been silent for so long is forgotten."""
    coflow_stall_seconds: Seconds = 15.0
    """A flow that has not moved for so long, and might have, loses its place until it moves."""
    coflow_lifetime_seconds: Annotated[int, Field(ge=3, le=3600)] = 15
    """How long the switches keep to a schedule that nobody renews."""
    coflow_threshold_bytes: Annotated[float, Field(ge=0)] = 2_500_000.0
    """Coflows without a transfer larger than this are left to the default paths."""
    coflow_policy: CoflowPolicy = Field(default=POLICIES.default(Kind.COFLOW), validate_default=True)

    @field_validator("coflow_policy")
    @classmethod
    def _goes_with_queues(cls, coflow_policy: str, info: ValidationInfo) -> str:
        """A class of traffic means another queue with the other slices: what should wait would go first."""
        queues, is_ranking = info.data.get("queues"), POLICIES.get(Kind.COFLOW, coflow_policy).ranks_flows
        if info.data.get("coflow_key_file") is not None and queues == ("mincof" if is_ranking else "priorities"):
            raise ValueError(f'with this policy set queues = "{"priorities" if is_ranking else "mincof"}" or "none", '
                             f"not {queues!r}")
        return coflow_policy

    replica_policy: ReplicaPolicy = Field(default_factory=lambda settings: replica_policy_beside(
        settings.get("coflow_policy") if settings.get("coflow_key_file") else None))
    path_policy: PathPolicy = POLICIES.default(Kind.PATH)

    @field_validator("path_policy")
    @classmethod
    def _goes_with_replica_policy(cls, path_policy: str, info: ValidationInfo) -> str:
        if info.data.get("replica_policy") == "mayflower-plus" and path_policy != "mayflower":
            raise ValueError("the replica policy mayflower-plus chooses paths itself: leave it out")
        return path_policy

    placement_measurements: Literal["switches", "heartbeats"] = "switches"
    """Who tells placements what links carry: the switches' counters, or the hosts, of their own links alone."""

    @field_validator("placement_measurements")
    @classmethod
    def _heartbeats_are_signed(cls, measurements: str, info: ValidationInfo) -> str:
        if measurements == "heartbeats" and info.data.get("coflow_key_file") is None:
            raise ValueError("hosts sign their heartbeats: set coflow_key_file")
        return measurements

    coflow_rates: Literal["meters", "hosts"] = "meters"
    """Who holds flows to their rates. `hosts`: no meters; host agents do, or whoever asks `/v1/coflows`."""
    max_meters: Annotated[int, Field(ge=0, le=1 << 24)] = 1 << 16
    """How many meters the controller may use at a switch; flows beyond go without."""
    meter_min_burst_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 64 << 10
    """A meter's burst must hold what a sender's offload hands over at once; less only where nothing is offloaded."""
    meter_min_rate_bps: Annotated[float, Field(ge=1000, le=1e12)] = 64e3
    """What a meter lets pass at least: a full frame of 1,500 bytes in 200 ms, after which TCP sends again at the
    earliest. Below, each loss doubles its wait, and a flow whose rate was computed from too little left does not
    recover. Less only where many flows wait at one host: `controller/coflows/minimum_rates.py`."""

    probe_interval_seconds: Seconds = 2.0
    """Between two LLDP probes of a port, longer where `probes_per_second` needs it."""
    probes_per_second: Annotated[int, Field(ge=10, le=100_000)] = 400
    probe_misses: Annotated[int, Field(ge=2, le=100)] = 4
    """Unanswered probes in a row after which a link is checked once more and then taken out."""
    max_hosts_per_port: Annotated[int, Field(ge=1, le=65536)] = 64
    """Every host costs entries in all edge switches: one that invents sender addresses must not fill them."""
    packet_ins_per_port: Annotated[int, Field(ge=10, le=100_000)] = 100
    """Packets a second that the hosts at one port may have handed up to the controller."""
    packet_ins_per_switch: Annotated[int, Field(ge=100, le=1_000_000)] = 1000
    """`controller_rate_limit` of a switch with an OVSDB, unless a lower one is set there."""
    settle_seconds: Seconds = 0.5
    """How long the fabric must not have changed before labels are given out for the first time."""
    datapath_ids: tuple[DatapathId, ...] = ()
    """The switches that may connect: 16 hex digits, or `DPID@ADDRESS` for one that must come from this address.
    Empty: any switch may, and the first connection with a datapath id keeps it for as long as it answers."""
    host_ports: tuple[SwitchPorts, ...] = ()
    """Ports that lead to hosts, whatever comes in there: `DPID:PORT` or `DPID:FIRST-LAST`, the datapath id in 16 hex
    digits. They are not probed and never get a link."""
    switch_expiry_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600.0
    """How long a switch that left is waited for; until then `/v1/health` says `degraded`. Those of `datapath_ids` are
    waited for without end."""
    echo_interval_seconds: Seconds = 2.0
    echo_misses: Annotated[int, Field(ge=1, le=100)] = 3
    confirm_timeout_seconds: Seconds = 2.0
    """How long a switch may take for a barrier reply."""


def load_settings(file: Path | None = None, **given: Any) -> Settings:
    """Settings from a TOML file (flat keys named as the fields) overridden by `given` values that are not None.

    Raises InvalidSettings, naming the key or the file, for a file that cannot be read, an unknown key, a bad value.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text())
        except OSError as error:
            raise InvalidSettings(f"cannot read the settings in {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidSettings(f"cannot read the settings in {file}: it is no text in UTF-8") from error
        except tomllib.TOMLDecodeError as error:
            raise InvalidSettings(f"cannot read the settings in {file}: it is no TOML: {error}") from error
    values |= {key: value for key, value in given.items() if value is not None}
    try:
        return Settings(**values)
    except ValidationError as error:
        raise InvalidSettings("; ".join(_describe(problem) for problem in problems(error))) from error


def _describe(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {key!r}"
    if not key:     # of several settings together
        return reason(problem)
    return f"setting {key!r}: {reason(problem)} (got {problem['input']!r})"
