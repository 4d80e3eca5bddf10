"""The files that an HDFS on an emulated fabric is configured by.

RPC goes over the management network. A DataNode is known by its management address, from which it registers, and
by its "host name", which is its fabric address: a client that reads connects by the latter, so data that is read
crosses the fabric. What is stored before an experiment goes over the management network, which is not shaped.
"""

import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from speedwell.topo.fabric import Fabric, Host
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS

NAMENODE_PORT = 9000
NAMENODE_HTTP_PORT = 9870
DATA_PORT = 9866
DATANODE_IPC_PORT = 9867
DATANODE_HTTP_PORT = 9864
BLOCK_BYTES = 64 << 20     # more than any file here: a file is one block, as in the paper
UNKNOWN_RACK = "/unknown/unknown"


def common(directory: Path) -> dict[str, str]:
    """What NameNode, DataNodes and clients share. Kept at Hadoop's defaults: all that is not named."""
    return {
        "fs.defaultFS": f"hdfs://{MACHINE_ADDRESS}:{NAMENODE_PORT}",
        "hadoop.tmp.dir": str(directory / "temporary"),
        "net.topology.script.file.name": str(directory / "topology.sh"),
        "dfs.blocksize": str(BLOCK_BYTES),
        "dfs.permissions.enabled": "false",
        "dfs.client.use.datanode.hostname": "true",
        # Every read is a connection, so a flow, of its own; a client would else keep it for 3 s for the next.
        "dfs.client.socketcache.capacity": "0",
        # A client that closes a file waits for the DataNodes' reports, first this long (by default 400 ms).
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
    }


def namenode(directory: Path) -> dict[str, str]:
    """What the NameNode needs on top of `common`."""
    return {
        "dfs.namenode.name.dir": f"file://{directory / 'namenode'}",
        "dfs.namenode.http-address": f"{MACHINE_ADDRESS}:{NAMENODE_HTTP_PORT}",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        # Files' places are given, however busy the DataNodes there are.
        "dfs.namenode.redundancy.considerLoad": "false",
    }


def host(host: Host, directory: Path, controller_url: str) -> dict[str, str]:
    """What the DataNode and the client on `host` need on top of `common`."""
    return {
        "dfs.datanode.data.dir": f"file://{directory / 'data' / host.name}",
        "dfs.datanode.hostname": host.ip,
        "dfs.datanode.address": f"0.0.0.0:{DATA_PORT}",
        "dfs.datanode.ipc.address": f"{host.management_ip}:{DATANODE_IPC_PORT}",
        "dfs.datanode.http.address": f"{host.management_ip}:{DATANODE_HTTP_PORT}",
        "dfs.datanode.handler.count": "2",
        # df instead of a du process per DataNode, and no re-reading of blocks in the background
        "fs.getspaceused.classname": "org.apache.hadoop.fs.DFCachingGetSpaceUsed",
        "dfs.block.scanner.volume.bytes.per.second": "0",
        "speedwell.controller": controller_url,
        "speedwell.local-host": host.ip,
    }


def write_training(site: Path, hosts: Path, scratch: Path) -> None:
    """A NameNode and a DataNode on any free ports of the loopback interface."""
    anywhere = "127.0.0.1:0"
    values = common(scratch)
    del values["net.topology.script.file.name"]
    write_site(site, values | {
        "dfs.replication": "1",
        "fs.defaultFS": f"hdfs://{anywhere}",
        "dfs.namenode.name.dir": f"file://{scratch / 'namenode'}",
        "dfs.namenode.http-address": anywhere,
        "dfs.datanode.data.dir": f"file://{scratch / 'data'}",
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.datanode.address": anywhere,
        "dfs.datanode.ipc.address": anywhere,
        "dfs.datanode.http.address": anywhere,
        "fs.getspaceused.classname": "org.apache.hadoop.fs.DFCachingGetSpaceUsed",
    })
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")


def write_site(path: Path, values: Mapping[str, str]) -> None:
    """Write properties as a Hadoop configuration file."""
    properties = "".join(f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
                         for name, value in values.items())
    path.write_text(f"<configuration>\n{properties}</configuration>\n")


def write_hosts(path: Path, fabric: Fabric) -> None:
    """Every address of the fabric under a name: what Java then knows instead of a name server's answers."""
    lines = ["127.0.0.1 localhost", f"{MACHINE_ADDRESS} machine {socket.gethostname()}"]
    for host in fabric.hosts:
        lines += [f"{host.ip} {host.name}", f"{host.management_ip} {host.name}-management"]
    path.write_text("\n".join(lines) + "\n")


def write_topology_script(path: Path, fabric: Fabric) -> None:
    """The script that Hadoop asks for racks: called with addresses, it prints /POD/RACK for each, in a line.

    It is asked by the management address (a DataNode's RPC comes from there); the fabric's is understood too.
    """
    cases = "\n".join(
        f"    {shlex.quote(host.ip)}|{shlex.quote(host.management_ip)}|{shlex.quote(host.name)}) "
        f"echo {shlex.quote(f'/{host.pod}/{host.rack}')} ;;" for host in fabric.hosts)
    path.write_text("#!/bin/sh\n"
                    "for address; do\n"
                    '  case "$address" in\n'
                    f"{cases}\n"
                    f"    *) echo {UNKNOWN_RACK} ;;\n"
                    "  esac\n"
                    "done\n")
    path.chmod(0o755)
