"""What TCP or UDP carries between two hosts, measured with iperf3."""

import json
import shutil
import subprocess
from typing import Any

from speedwell.topo.emulation import processes
from speedwell.topo.emulation.errors import EmulationError, MissingRequirement
from speedwell.topo.emulation.nodes import FabricHost

_PORT = 5201
_CONNECT_TIMEOUT_MILLISECONDS = 5000
_SPARE_SECONDS = 15.0

Host = Any   # one of ours or, in `mn`, one of Mininet's own


def measure(client: Host, server: Host, seconds: int, udp_rate: str | None = None) -> float:
    """Bits/s that `server` receives from `client` in `seconds`; by UDP sent at `udp_rate` (such as 10M) if given.

    Raises `MissingRequirement` without iperf3, `EmulationError` with what iperf3 said.
    """
    if shutil.which("iperf3") is None:
        raise MissingRequirement("iperf3 is missing: apt-get install iperf3")
    with _popen(server, ["iperf3", "--server", "--one-off", "--forceflush", "--bind", server.IP(),
                         "--port", str(_PORT)]) as listener:
        try:
            assert listener.stdout is not None
            if not any("listening" in line for line in listener.stdout):
                raise EmulationError(f"{server.name}: iperf3 cannot listen on port {_PORT}")
            return _send(client, server, seconds, [] if udp_rate is None else ["--udp", "--bitrate", udp_rate])
        finally:
            listener.kill()


def _send(client: Host, server: Host, seconds: int, options: list[str]) -> float:
    with _popen(client, ["iperf3", "--client", server.IP(), "--port", str(_PORT), "--time", str(seconds), "--json",
                         "--connect-timeout", str(_CONNECT_TIMEOUT_MILLISECONDS), *options]) as sender:
        try:
            said, _ = sender.communicate(timeout=seconds + _SPARE_SECONDS)
        except subprocess.TimeoutExpired:
            raise EmulationError(f"iperf3 from {client.name} to {server.name} does not end") from None
        finally:
            sender.kill()
    try:
        report = json.loads(said)
    except ValueError:
        report = {"error": said.strip() or "it said nothing"}
    if "error" in report:
        raise EmulationError(f"iperf3 from {client.name} to {server.name}: {report['error']}")
    received = report["end"].get("sum_received") or report["end"]["sum"]
    return float(received["bits_per_second"])


def _popen(host: Host, argv: list[str]) -> subprocess.Popen[str]:
    env = processes.environment(host.site.marker) if isinstance(host, FabricHost) else None
    return subprocess.Popen(processes.in_namespace(host.pid, argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=env)
