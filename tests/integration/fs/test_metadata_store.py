"""Metadata servers with real stores, in network namespaces of their own: a router in their midst plays the fabric."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from speedwell.fs.metadata_store.addresses import PORT, address_of
from tests.waiting import wait_until

pytestmark = pytest.mark.root
LOW, HIGH = "100.64.0.0/11", "100.96.0.0/11"


class Site:
    """A router namespace and one namespace for each name, at 10.77.N.2 with the router at 10.77.N.1."""

    def __init__(self, names: tuple[str, ...], directory: Path) -> None:
        self.mark = f"md{secrets.token_hex(3)}"
        self.directory = directory
        self.names = names
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "Site":
        _run("ip", "netns", "add", self.namespace("router"))
        for number, name in enumerate(self.names, 1):
            _run("ip", "netns", "add", self.namespace(name))
            _run(*self.inside("router"), "ip", "link", "add", f"to{number}", "type", "veth", "peer", "name",
                 "eth0", "netns", self.namespace(name))
            for namespace, link, last in (("router", f"to{number}", 1), (name, "eth0", 2)):
                _run(*self.inside(namespace), "ip", "addr", "add", f"10.77.{number}.{last}/24", "dev", link)
                _run(*self.inside(namespace), "ip", "link", "set", link, "up")
            _run(*self.inside(name), "ip", "route", "add", "default", "via", f"10.77.{number}.1")
        _run(*self.inside("router"), "sysctl", "-qw", "net.ipv4.ip_forward=1")
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for name in ("router", *self.names):
            subprocess.run(["ip", "netns", "del", self.namespace(name)], check=False)

    def namespace(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def inside(self, name: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.namespace(name)}"]     # ip netns exec fails in a chroot

    def host(self, name: str) -> str:
        return f"10.77.{self.names.index(name) + 1}.2"

    def gateway(self, name: str) -> str:
        """The router's address on the way to a name."""
        return f"10.77.{self.names.index(name) + 1}.1"

    def unroute(self, block: str) -> None:
        _run(*self.inside("router"), "ip", "route", "del", block)

    def start_client(self, code: str, name: str, *arguments: str) -> subprocess.Popen[str]:
        """A program that has `client`, a MetadataClient."""
        begin = "from speedwell.fs.metadata_store.client import *\nclient = MetadataClient(timeout_seconds=20)\n"
        return subprocess.Popen([*self.inside(name), sys.executable, "-c", begin + code, *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def route(self, block: str, name: str) -> None:
        _run(*self.inside("router"), "ip", "route", "replace", block, "via", self.host(name))

    def serve(self, name: str, *options: str, store: str | None = None) -> None:
        process = subprocess.Popen(
            [*self.inside(name), sys.executable, "-m", "speedwell.fs.metadata_store.main", "--store",
             store or f"leveldb:{self.directory / name}", *options], stdout=subprocess.PIPE, text=True)
        self.processes[name] = process
        assert process.stdout is not None and process.stdout.readline().startswith("ready")

    def redis(self, name: str) -> str:
        path = self.directory / f"{name}.sock"
        self.processes[f"redis-{name}"] = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(path), "--dir", str(self.directory), "--appendonly",
             "yes", "--appendfsync", "always"], stdout=subprocess.DEVNULL, text=True)
        wait_until(path.exists, 20, "Redis does not listen")
        return f"redis:{path}"

    def client(self, code: str, name: str = "client") -> str:
        """What a program prints that has `client`, a MetadataClient."""
        result = subprocess.run(
            [*self.inside(name), sys.executable, "-c",
             "from speedwell.fs.metadata_store.client import *\n"
             f"client = MetadataClient(timeout_seconds=20)\n{code}"],
            capture_output=True, text=True, timeout=100, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def raw(self, name: str, data: bytes) -> bytes:
        """What the server of a name answers to these bytes, until it closes or is idle for a moment."""
        code = ("import socket, sys\n"
                f"s = socket.create_connection(('127.0.0.1', {PORT}))\n"
                "s.settimeout(5); s.sendall(sys.stdin.buffer.read()); s.shutdown(1)\n"
                "while part := s.recv(65536): sys.stdout.buffer.write(part)")
        return subprocess.run([*self.inside(name), sys.executable, "-c", code], input=data, capture_output=True,
                              timeout=60, check=True).stdout


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(("client", "low", "high"), tmp_path_factory.mktemp("metadata")) as site:
        site.serve("low", "--block", LOW)
        site.serve("high", "--block", HIGH, store=site.redis("high"))
        site.route(LOW, "low")
        site.route(HIGH, "high")
        yield site


def test_records_go_to_the_server_of_their_hash_in_leveldb_and_redis(site):
    print_all = "print(all(client.get(b'key %d' % n) == b'value %d' % n for n in range(200)), len(client._kept))"
    said = site.client("for n in range(200): client.put(b'key %d' % n, b'value %d' % n)\n" + print_all
                       + "\nprint(client.get(b'nobody'))")
    assert said.split() == ["True", "2", "None"]
    in_high = next(f"key {n}".encode() for n in range(200) if address_of(f"key {n}".encode()) in IPv4Network(HIGH))
    found = subprocess.run(["redis-cli", "-s", str(site.directory / "high.sock"), "get", in_high], check=True,
                           capture_output=True, text=True).stdout
    assert found.strip() == in_high.decode().replace("key", "value")


def test_a_key_of_another_server_is_refused_by_name_and_not_stored(site):
    key = next(f"k{n}".encode() for n in range(99) if address_of(f"k{n}".encode()) in IPv4Network(LOW))
    for command in ((b"SET", key, b"lost"), (b"GET", key)):
        answer = site.raw("high", _command(*command)).decode()
        assert answer.startswith(f"-NOTMINE {address_of(key)} is not within the blocks that ")
    assert subprocess.run(["redis-cli", "-s", str(site.directory / "high.sock"), "exists", key],
                          capture_output=True, text=True, check=True).stdout.strip() == "0"


@pytest.mark.parametrize(("data", "said"), [
    (_command(b"SET", b"x" * 65536, b"1"), b"-ERR a key of 65536 bytes: 1 to 1024 are taken\r\n"),
    (_command(b"GET", b""), b"-ERR a key of 0 bytes: 1 to 1024 are taken\r\n"),
    (b"GET / HTTP/1.1\r\n\r\n", b"-ERR Protocol error: expected '*', got b'GET / HTTP/1.1\\r\\n'\r\n"),
    (b"*1\r\n$99999999999\r\n", b"-ERR Protocol error: a length of 99999999999, at most 1048576 is taken\r\n"),
    (b"*99\r\n", b"-ERR Protocol error: a length of 99, at most 16 is taken\r\n"),
    (b"\0" * 5000, b"-ERR Protocol error: expected '*', got "),
    (_command(b"FLUSHALL"), b"-ERR unknown command b'FLUSHALL': there are BLOCKS, "),
    (_command(b"SET", b"x"), b"-ERR SET takes 2 arguments, not 1\r\n"),
    (_command(b"RELEASE", LOW.encode()), b"-NOTMINE 100.64.0.0/11 of "),
    (_command(b"RELEASE", b"10.0.0.0/8"), b"-ERR RELEASE: 10.0.0.0/8 is not within 100.64.0.0/10\r\n"),
])
def test_nonsense_on_the_port_is_refused_by_name_and_the_server_goes_on(site, data, said):
    assert site.raw("low", data).startswith(said)
    assert site.raw("low", _command(b"PING")) == b"+PONG\r\n"


def test_a_servers_arp_requests_bear_no_address_of_a_block(site):
    announce = subprocess.run([*site.inside("low"), "cat", "/proc/sys/net/ipv4/conf/all/arp_announce"],
                              capture_output=True, text=True, check=True).stdout
    assert announce.strip() == "2"


def test_an_acknowledged_put_survives_the_kill_of_the_server(tmp_path):
    with Site(("client", "one"), tmp_path) as site:
        site.route("100.64.0.0/10", "one")
        site.serve("one", "--block", "100.64.0.0/10")
        site.client("for n in range(50): client.put(b'k%d' % n, b'v%d' % n)")
        site.processes["one"].kill()
        site.processes["one"].wait()
        site.serve("one", "--block", HIGH)
        routes = subprocess.run([*site.inside("one"), "ip", "route", "show", "table", "local"], check=True,
                                capture_output=True, text=True).stdout
        assert HIGH in routes and "100.64.0.0/10" not in routes, "routes of the killed process are not taken over"
        site.processes["one"].kill()
        site.processes["one"].wait()
        site.serve("one", "--block", "100.64.0.0/10")
        assert site.client("print(all(client.get(b'k%d' % n) == b'v%d' % n for n in range(50)))").strip() == "True"


@pytest.mark.parametrize(("options", "said"), [
    (["--store", "paper:x"], "--store: 'paper:x' is neither leveldb:DIR nor redis:SOCKET"),
    (["--store", "redis:/nowhere.sock"], "the Redis at /nowhere.sock does not answer: No such file or directory"),
    (["--store", "leveldb:/tmp/x", "--block", "10.0.0.0/8"], "--block: 10.0.0.0/8 is not within 100.64.0.0/10"),
    (["--store", "leveldb:/tmp/x", "--block", "100.64.0.1/10"], "'100.64.0.1/10' is not a block of addresses"),
])
def test_bad_options_are_refused_by_name(options, said):
    result = subprocess.run([sys.executable, "-m", "speedwell.fs.metadata_store.main", *options], capture_output=True,
                            text=True, timeout=60, check=False)
    assert result.returncode in (1, 2) and said in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("get", "key"), ("put", "key", "value")])
def test_a_machine_without_a_route_of_its_own_to_the_keys_asks_no_stranger(arguments: tuple[str, ...]) -> None:
    speedwell = str(Path(sys.executable).with_name("speedwell"))
    done = subprocess.run(["unshare", "--net", speedwell, "metadata", *arguments], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("speedwell: this machine has no route to 100.64.0.0/10: run it on a"), done.stderr
