"""What an installation on an emulated fabric is to be, checked before anything of it starts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from speedwell.cluster import host_agents, identities
from speedwell.cluster.data_directories import MAX_DIRECTORIES
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.nameservers import MAX_NAMESERVERS, etcd_names, nameserver_names
from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.registry import Kind, replica_policy_beside
from speedwell.controller.settings import CoflowPolicy, PathPolicy, PlacementPolicy, ReplicaPolicy, TimeslicePolicy
from speedwell.controller.validation import problems, reason
from speedwell.fs.identity import roles
from speedwell.fs.units import counted
from speedwell.topo.emulation.settings import Settings
from speedwell.topo.fabric import Fabric, InvalidFabric

DIRECTORY = Path("/var/tmp/speedwell/fabric")


class FabricSettings(BaseModel):
    """What to build: the fabric, where its files go, which hosts mount the filesystem and where."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    fabric: Fabric
    directory: Path = DIRECTORY
    mounts: dict[str, Path] = {}
    machine: bool = False
    """Whether this machine is a host of the fabric itself, `machine`, for the commands that run on it."""
    nameservers: int = Field(default=1, ge=1, le=MAX_NAMESERVERS)
    metadata_servers: int = Field(default=0, ge=0, le=MAX_NAMESERVERS)
    """On how many hosts a nameserver runs that owns a part of the namespace; 0: one leads, beside the controller."""
    directories_per_server: int = Field(default=1, ge=1, le=MAX_DIRECTORIES)
    replication: int = Field(default=3, ge=1, le=16)
    chunk_size_bytes: int = Field(default=256 << 20, ge=64 << 10, le=1 << 40)
    fsync: Literal["always", "fsync", "never"] | None = None
    min_replicas: int | None = Field(default=None, ge=1, le=16)
    deletion_grace_seconds: float = Field(default=60.0, ge=0, le=366 * 86400)
    coflows: CoflowPolicy | None = None
    """By which policy the filesystem's transfers are scheduled as coflows; None: they are not."""
    replica_policy: ReplicaPolicy = Field(default_factory=lambda settings: replica_policy_beside(
        settings.get("coflows")))
    path_policy: PathPolicy = POLICIES.default(Kind.PATH)
    placement_policy: PlacementPolicy = POLICIES.default(Kind.PLACEMENT)
    shaped: bool = True
    queue_packets: int = Field(default=Settings().queue_packets, ge=1, le=100_000)
    host_queue_packets: int | None = Field(default=None, ge=1, le=100_000)
    metadata_stores: int = Field(default=0, ge=0)
    """How many hosts run a metadata server, the first of each rack before the second ones."""
    host_agents: TimeslicePolicy | None = None
    """By which policy a scheduler gives hosts' agents turns to send in; None: there are none."""
    placement_measurements: Literal["switches", "heartbeats"] = "switches"
    """Who measures links for placements; heartbeats go with coflows only, as they are signed with their key."""
    poll_interval_seconds: float = Field(default=1.0, gt=0, le=3600)
    identity: bool = True
    """Whether servers and mounts have certificates, and take only who has one."""
    encrypt_data: bool = False
    """TLS on the data channel."""
    metrics: bool = False
    """Whether every process answers Prometheus, over the management network."""

    @field_validator("directory")
    @classmethod
    def _absolute(cls, directory: Path) -> Path:
        return directory.absolute()

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        names = {host.name for host in self.fabric.hosts}
        for host, mountpoint in self.mounts.items():
            if host not in names:
                raise ValueError(f"--mount-on: no host is named {host!r}; there are "
                                 f"{', '.join(sorted(names)[:6])} ...")
            if not mountpoint.is_absolute():
                raise ValueError(f"mounts: {mountpoint} must be an absolute path")
        for name in ("metadata_stores", "metadata_servers"):
            if getattr(self, name) > len(self.fabric.hosts):
                raise ValueError(f"{name}: {getattr(self, name)} servers need as many hosts, there are "
                                 f"{len(self.fabric.hosts)}")
        if self.metadata_servers == 1:
            raise ValueError("metadata_servers: one nameserver owns everything without it; name 2 or more")
        if self.metadata_servers and self.nameservers not in (1, self.metadata_servers):
            raise ValueError("metadata_servers: it does not go with nameservers, of which one leads")
        self.nameservers = self.metadata_servers or self.nameservers
        if self.host_agents and not self.shaped:
            raise ValueError("host_agents: links that are not shaped have no rate that turns could share out")
        if len(set(self.mounts.values())) < len(self.mounts):
            raise ValueError("mounts: two hosts cannot share one mount point")
        if self.placement_measurements == "heartbeats" and self.coflows is None:
            raise ValueError("placement_measurements: heartbeats are signed with the key of coflows: set coflows too")
        taken = Counter(name for name, _ in self.identity_names)
        if self.identity and max(taken.values()) > 1:
            raise ValueError(f"fabric: {max(taken, key=taken.__getitem__)} has a certificate of its own: give this "
                             "host or switch another name")
        return self

    @property
    def identity_names(self) -> list[tuple[str, str]]:
        """Who has a certificate, by name and role."""
        return [("controller", roles.CONTROLLER),
                *((switch.dpid_hex, roles.SWITCH) for switch in self.fabric.switches),
                *((name, roles.NAMESERVER) for name in nameserver_names(self.nameservers)),
                *((name, roles.ETCD) for name in etcd_names(self.nameservers)),
                *((host.name, roles.DATASERVER) for host in self.fabric.hosts),
                *((f"mount-{host}", roles.MOUNT) for host in self.mounts), identities.OPERATORS,
                *([(host_agents.SCHEDULER, roles.SCHEDULER)] if self.host_agents else [])]

    @property
    def systems(self) -> list[str]:
        """What is on beside reads and placements, for people to read."""
        on = {"coflows by {}": self.coflows, "turns by {}": self.host_agents,
              "metadata on {}": self.metadata_stores and counted(self.metadata_stores, "store")}
        return [text.format(chosen) for text, chosen in on.items() if chosen]


def with_all_systems(fabric: Fabric) -> dict[str, Any]:
    """Settings with which all five systems are on."""
    return {"coflows": "coflow-plus", "host_agents": POLICIES.default(Kind.TIMESLICES),
            "placement_policy": "sinbad-plus", "metadata_stores": len({host.rack for host in fabric.hosts})}


def read_settings(**values: Any) -> FabricSettings:
    """Validated settings. Raises InvalidSetting naming the field that is wrong."""
    try:
        return FabricSettings(**values)
    except ValidationError as error:
        reasons = [": ".join(filter(None, (".".join(map(str, detail["loc"])), reason(detail))))
                   for detail in problems(error)]
        raise InvalidSetting("; ".join(reasons)) from error
    except InvalidFabric as error:
        raise InvalidSetting(str(error)) from error
