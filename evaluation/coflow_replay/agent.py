"""One host's part in a replay: takes bytes from others, and sends what it is told to.

Its input has an object a line: `{"id", "coflow", "source", "flows": [[ADDRESS, BYTES], ...], "reported", "paced"}`,
to be sent at once from its address `source`; or, for flows that are paced, `{"rates": [[PORT, ADDRESS, BPS], ...]}`
by their own ports and where they go. When the last flow has arrived it answers `{"id", "ended"}`, or `{"id",
"error"}`; times are of the monotonic clock, which all processes of a machine share. At the end of its input it
leaves.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from speedwell.coflow.report import Flow
from speedwell.coflow.reporter import FlowProgress, Reporter
from speedwell.coflow.settings import scheduler
from speedwell.evaluation.coflow_replay.pace import Pace

BLOCK = bytes(1 << 16)
PACED_BLOCK = BLOCK[:1 << 14]
STACK_BYTES = 256 << 10
CONNECT_SECONDS = 30.0

Paces = dict[tuple[int, str], Pace]
"""By a flow's port here and the address it goes to."""


def serve(listening: socket.socket) -> None:
    """Take whatever comes, and say one byte when a sender is done."""
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_swallow, args=(connection,), daemon=True).start()


def _swallow(connection: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    with connection:
        try:
            while connection.recv_into(buffer):
                pass
            connection.sendall(b"!")
        except OSError:
            return      # the sender says that it failed


def send(order: dict[str, Any], port: int, reporter: Reporter | None, paces: Paces) -> dict[str, Any]:
    """Send all flows of an order; returns the answer to it.

    Their own ports are taken first, so that they can be reported before they connect. They connect all at once: one
    after the other, the last would wait for as many round trips as there are flows, and queues may be full.
    """
    accounts: list[FlowProgress] = []
    errors: list[OSError] = []
    try:
        connections = [_bound(order["source"]) for _ in order["flows"]]
    except OSError as error:
        return {"id": order["id"], "error": str(error)}
    names = [(connection.getsockname()[1], address)
             for connection, (address, _) in zip(connections, order["flows"], strict=True)]
    own = [Pace() if order["paced"] else None for _ in names]
    paces.update((name, pace) for name, pace in zip(names, own, strict=True) if pace is not None)
    if reporter is not None and order["reported"]:
        accounts = reporter.add(
            [(Flow(order["source"], address, own_port, port), size)
             for (own_port, address), (_, size) in zip(names, order["flows"], strict=True)],
            bytes.fromhex(order["coflow"]))
        for account, connection in zip(accounts, connections, strict=True):
            account.follow(connection)
    threads = [threading.Thread(target=_send_flow, args=(
        connection, (address, port), size, accounts[number] if accounts else None, reporter, own[number], errors))
        for number, (connection, (address, size)) in enumerate(zip(connections, order["flows"], strict=True))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        paces.pop(name, None)
    return {"id": order["id"], "error": str(errors[0])} if errors else {"id": order["id"], "ended": time.monotonic()}


def _bound(source: str) -> socket.socket:
    connection = socket.socket()
    connection.bind((source, 0))
    return connection


def _send_flow(connection: socket.socket, target: tuple[str, int], size: int, account: FlowProgress | None,
               reporter: Reporter | None, pace: Pace | None, errors: list[OSError]) -> None:
    left = size
    try:
        with connection:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(target)
            connection.settimeout(None)
            while left:
                block = (BLOCK if pace is None else PACED_BLOCK)[:left]
                if pace is not None:
                    pace.wait(len(block))
                left -= connection.send(block)
            connection.shutdown(socket.SHUT_WR)
            if not connection.recv(1):
                raise ConnectionError("the receiver closed the connection")
    except OSError as error:
        errors.append(error)
    finally:
        if account is not None and reporter is not None:
            reporter.ended(account)


def main(arguments: list[str]) -> None:
    """Arguments: the port for data, and, for reports, the scheduler's address and the file of its key."""
    port = int(arguments[0])
    threading.stack_size(STACK_BYTES)
    reporter = Reporter(scheduler(arguments[1], Path(arguments[2]))) if len(arguments) > 1 else None
    listening = socket.create_server(("0.0.0.0", port), backlog=1024)
    threading.Thread(target=serve, args=(listening,), daemon=True).start()
    says = threading.Lock()
    paces: Paces = {}

    def carry_out(order: dict[str, Any]) -> None:
        answer = json.dumps(send(order, port, reporter, paces))
        with says:
            print(answer, flush=True)

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "rates" not in order:
            threading.Thread(target=carry_out, args=(order,), daemon=True).start()
            continue
        for own_port, address, rate_bps in order["rates"]:
            if (pace := paces.get((own_port, address))) is not None:
                pace.set(rate_bps)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
