"""Real switches that a controller knows by their certificates, over TLS, and what becomes of those it does not."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from speedwell.cluster.processes import Command, Processes, program
from speedwell.fs.identity import files
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import CONTROLLER, DATASERVER, MOUNT, OPERATOR, SWITCH
from speedwell.topo.emulation import Emulation
from speedwell.topo.emulation.openvswitch import BRIDGE, DATABASE_PORT
from speedwell.topo.fabric import Fabric, spine_leaf
from speedwell.topo.fabric.model import Switch
from tests.waiting import wait_until

pytestmark = pytest.mark.root

MACHINE, OPENFLOW_PORT = "10.255.0.1", 6653
PATIENCE_SECONDS = 40.0
DOCS = Path(__file__).parents[3] / "docs/tls.md"


class Site:
    """A fabric, the authority of its controller and switches, and the controller."""

    def __init__(self, fabric: Fabric, directory: Path, authority: Authority, emulation: Emulation) -> None:
        self.fabric = fabric
        self.authority = authority
        self.emulation = emulation
        self._log = directory / "controller" / "logs" / "controller.log"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def vsctl(self, switch: Switch, *arguments: str) -> str:
        return self.emulation.ovs_vsctl(switch.name, *arguments).strip()

    def ping(self) -> bool:
        first, last = self.fabric.hosts[0], self.fabric.hosts[-1]
        return self.emulation.run(first.name, ["ping", "-c", "1", "-W", "1", last.ip]).returncode == 0

    def admissions(self, switch: Switch) -> int:
        """How often the controller has found that switch connected."""
        return self.log.count(f" connected from {switch.management_ip}\n")

    @contextmanager
    def refused(self, switch: Switch, message: str) -> Iterator[None]:
        """The switch is refused with that message after what is done within, and not admitted."""
        said, admitted = self.log.count(message), self.admissions(switch)
        yield
        wait_until(lambda: self.log.count(message) > said, PATIENCE_SECONDS, lambda: f"{message}: {self.log[-2000:]}")
        assert self.admissions(switch) == admitted

    def wait_admitted(self, switch: Switch, before: int) -> None:
        wait_until(lambda: self.admissions(switch) > before, PATIENCE_SECONDS, lambda: self.log[-2000:])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("switches")
    fabric = spine_leaf(leaves=2, spines=1, hosts_per_leaf=1, host_bps=40e6, oversubscription=1.0)
    authority = Authority.make(directory / "identity")
    authority.ensure([("controller", CONTROLLER), ("stolen", CONTROLLER), ("laptop", MOUNT),
                      ("dataserver", DATASERVER), ("operator", OPERATOR),
                      *((switch.dpid_hex, SWITCH) for switch in fabric.switches)], MACHINE)
    controller = Processes(directory / "controller")
    with Emulation(fabric, directory=directory / "switches", controller=(MACHINE, OPENFLOW_PORT),
                   identities=authority.directory) as emulation:
        try:
            controller.start_together([Command("controller", [
                program("speedwell-controller"), "--openflow-host", MACHINE, "--rest-host", MACHINE, "--identity",
                str(authority.directory / "controller")])])
            made = Site(fabric, directory, authority, emulation)
            wait_until(lambda: all(map(made.admissions, fabric.switches)), PATIENCE_SECONDS, lambda: made.log[-2000:])
            emulation.announce_hosts()
            wait_until(made.ping, PATIENCE_SECONDS, lambda: made.log[-2000:])
            yield made
        finally:
            controller.stop()


def test_controller_and_databases_are_met_over_tls_1_3_alone(site: Site) -> None:
    leaf, *_ = site.fabric.switches
    assert site.vsctl(leaf, "get-controller", BRIDGE) == f"ssl:{MACHINE}:{OPENFLOW_PORT}"
    # written by the controller over OVSDB
    wait_until(lambda: site.vsctl(leaf, "--bare", "--columns=controller_rate_limit", "list", "Controller") == "1000",
               PATIENCE_SECONDS, "packets that are handed up are not limited")
    context = shown(site, "laptop")
    context.load_verify_locations(site.authority.directory / files.SWITCH_AUTHORITY)
    for address in ((leaf.management_ip, DATABASE_PORT), (MACHINE, OPENFLOW_PORT)):
        with socket.create_connection(address, timeout=10) as plain, context.wrap_socket(plain) as secured:
            assert secured.version() == "TLSv1.3"
    with socket.create_connection((leaf.management_ip, DATABASE_PORT), timeout=10) as plain:
        plain.sendall(b'{"method": "echo", "params": [], "id": 1}')
        with pytest.raises(OSError):
            assert b"result" not in plain.recv(100)
            raise ConnectionError


def test_a_switch_is_admitted_with_its_own_certificate_alone(site: Site) -> None:
    leaf, *_ = site.fabric.switches
    before = site.admissions(leaf)
    trusted = str(site.authority.directory / leaf.dpid_hex / files.AUTHORITY)
    with site.refused(leaf, "as switch 00000000000000ff is refused: its certificate is for another datapath id"):
        site.vsctl(leaf, "set", "Bridge", BRIDGE, "other_config:datapath-id=00000000000000ff")
    with site.refused(leaf, "its certificate is that of the mount laptop, not of a switch"):
        own = str(site.authority.directory / "laptop" / "identity.pem")
        site.vsctl(leaf, "set-ssl", own, own, trusted, "--", "set", "Bridge", BRIDGE,
                   f"other_config:datapath-id={leaf.dpid_hex}")
    own = str(site.authority.directory / leaf.dpid_hex / "identity.pem")
    site.vsctl(leaf, "set-ssl", own, own, trusted)
    site.wait_admitted(leaf, before)
    wait_until(site.ping, PATIENCE_SECONDS, "it forwards nothing")


IMPOSTORS = ("dataserver", "laptop", "operator", "another-switch", "controller")
"""Whose certificates are of the installation's authority: a controller's, too, is none that switches take."""


def shown(site: Site, name: str, *, server: bool = False) -> ssl.SSLContext:
    """Of somebody who takes every switch, and has the certificate of `name`; the true controller's is to-switches,
    and `stolen` another's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(site.authority.directory / files.AUTHORITY)
    place = site.authority.directory / {"another-switch": site.fabric.switches[-1].dpid_hex}.get(name, name)
    to_switches = {"to-switches": "controller", "stolen": "stolen"}.get(name)
    context.load_cert_chain(place / files.CERTIFICATE if to_switches is None
                            else site.authority.directory / to_switches / files.TO_SWITCHES)
    return context


def write_contact(site: Site, switch: Switch, name: str) -> bytes:
    """What the database says to who would change it, over the network."""
    with (socket.create_connection((switch.management_ip, DATABASE_PORT), timeout=10) as plain,
          shown(site, name).wrap_socket(plain) as secured):
        operation = {"op": "update", "table": "Open_vSwitch", "where": [],
                     "row": {"external_ids": ["map", [["changed-by", name]]]}}
        secured.sendall(json.dumps({"method": "transact", "params": ["Open_vSwitch", operation], "id": 1}).encode())
        return secured.recv(4096)


@pytest.mark.parametrize("name", IMPOSTORS)
def test_a_database_takes_nothing_from_who_is_not_the_controller(site: Site, name: str) -> None:
    leaf, *_ = site.fabric.switches
    with pytest.raises(OSError):    # the alert, or the reset after it
        write_contact(site, leaf, name)
    assert name not in site.vsctl(leaf, "get", "Open_vSwitch", ".", "external_ids")


def test_a_database_takes_changes_from_what_the_controller_shows_to_switches(site: Site) -> None:
    leaf, *_ = site.fabric.switches
    before = site.vsctl(leaf, "get", "Open_vSwitch", ".", "external_ids")
    assert b'"count":1' in write_contact(site, leaf, "to-switches")
    assert "to-switches" in site.vsctl(leaf, "get", "Open_vSwitch", ".", "external_ids")
    site.vsctl(leaf, "set", "Open_vSwitch", ".", f"external_ids={before}")


def answer_switch(site: Site, switch: Switch, name: str) -> bytes:
    """What a switch says to a controller with the certificate of `name`, at an address of its own: where a switch was
    refused it waits longer each time. Raises what the handshake does."""
    with socket.create_server((MACHINE, 0)) as listening:
        listening.settimeout(PATIENCE_SECONDS)
        site.vsctl(switch, "set-controller", BRIDGE, f"ssl:{MACHINE}:{listening.getsockname()[1]}", "--", "set",
                   "Controller", BRIDGE, "connection_mode=out-of-band", "max_backoff=1000")
        plain, _ = listening.accept()
        with plain:
            plain.settimeout(10)
            with shown(site, name, server=True).wrap_socket(plain, server_side=True) as secured:
                return secured.recv(4096)


def test_a_switch_obeys_no_controller_but_its_own(site: Site) -> None:
    leaf, *_ = site.fabric.switches
    before = site.admissions(leaf)
    for name in IMPOSTORS:
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
            answer_switch(site, leaf, name)
    assert answer_switch(site, leaf, "to-switches")[1] == 0, "it says HELLO to its own"
    site.vsctl(leaf, "set-controller", BRIDGE, f"ssl:{MACHINE}:{OPENFLOW_PORT}", "--", "set", "Controller", BRIDGE,
               "connection_mode=out-of-band", "max_backoff=1000")
    site.wait_admitted(leaf, before)
    wait_until(site.ping, PATIENCE_SECONDS, "it forwards nothing")


def test_a_revoked_switch_is_let_go_and_comes_back_with_a_new_certificate(site: Site) -> None:
    spine = next(switch for switch in site.fabric.switches if switch.name.startswith("spine"))
    before = site.admissions(spine)
    with site.refused(spine, f"the certificate of the switch {spine.dpid_hex} was revoked"):
        site.authority.revoke(spine.dpid_hex)
    site.authority.issue(spine.dpid_hex, SWITCH)        # into the files that the switch uses
    site.wait_admitted(spine, before)
    wait_until(site.ping, PATIENCE_SECONDS, "it forwards nothing")


def kept(secured: ssl.SSLSocket, answer: Callable[[bytes], bytes]) -> Thread:
    """Alive as long as the connection, on which whether somebody is there is answered."""
    def keep() -> None:
        with suppress(OSError), secured:
            while data := secured.recv(65536):
                secured.sendall(answer(data))
    thread = Thread(target=keep, daemon=True)
    thread.start()
    return thread


def answer_database(data: bytes) -> bytes:
    return b'{"id": "echo", "result": [], "error": null}' if b'"method":"echo"' in data else b""


def answer_openflow(data: bytes) -> bytes:
    """HELLO with HELLO, ECHO_REQUEST with ECHO_REPLY (OpenFlow 1.3, A.1)."""
    return {0: data[:8], 2: data[:1] + b"\3" + data[2:]}.get(data[1], b"")


def test_the_documented_commands_end_what_a_revoked_controllers_key_has_open(site: Site) -> None:
    leaf, *_ = site.fabric.switches
    documented = re.search(r"have each switch connect anew.*?```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert documented is not None
    before = site.admissions(leaf)
    with socket.create_server((MACHINE, 0)) as listening:
        listening.settimeout(PATIENCE_SECONDS)
        site.vsctl(leaf, "set-controller", BRIDGE, f"ssl:{MACHINE}:{OPENFLOW_PORT}",
                   f"ssl:{MACHINE}:{listening.getsockname()[1]}")
        plain, _ = listening.accept()
        openflow = kept(shown(site, "stolen", server=True).wrap_socket(plain, server_side=True), answer_openflow)
    client = shown(site, "stolen")
    plain = socket.create_connection((leaf.management_ip, DATABASE_PORT), timeout=PATIENCE_SECONDS)
    database = kept(client.wrap_socket(plain), answer_database)
    trusted = site.authority.directory / leaf.dpid_hex / files.AUTHORITY
    old = trusted.read_bytes()

    site.authority.revoke("stolen")

    wait_until(lambda: trusted.read_bytes() != old, PATIENCE_SECONDS, "the switch has no new authority")
    assert openflow.is_alive() and database.is_alive()
    for command in re.split(r"\s*&&\s*|\n", documented[1].strip()):
        name, *words = re.sub(r"pssl:6640:\S+", f"pssl:{DATABASE_PORT}:{leaf.management_ip}", command).split()
        assert name == "ovs-vsctl"
        site.vsctl(leaf, *(BRIDGE if word == "br0" else word for word in words))
    for thread in (openflow, database):
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    with pytest.raises(OSError), socket.create_connection((leaf.management_ip, DATABASE_PORT), timeout=10) as plain, \
            client.wrap_socket(plain) as secured:
        secured.sendall(b'{"method": "echo", "params": [], "id": 1}')
        assert not secured.recv(100)
        raise ConnectionError
    site.wait_admitted(leaf, before)
    wait_until(site.ping, PATIENCE_SECONDS, "it forwards nothing")
