"""A stand-in for the controller's REST interface whose answers a test chooses: slow, wrong, or a placement.

For what a client does with any answer; what the controller itself answers is tested with the real one.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


class ScriptedController:
    """An HTTP server that answers `POST /v1/reads`, and questions for news of a read, as a test says; it records what
    is asked."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.asked: list[str] = []
        self.answer: Answer = placed_on("10.0.0.2")
        self.news: Callable[[str], tuple[int, Any]] = lambda path: (404, {"detail": "unknown read"})
        controller = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                controller.posts.append({"path": self.path, **body})
                self.reply(*controller.answer(body))

            def do_GET(self) -> None:
                controller.asked.append(self.path)
                self.reply(*controller.news(self.path))

            def do_DELETE(self) -> None:
                controller.deleted.append(self.path)
                self.reply(204, None)

            def reply(self, status: int, answer: Any) -> None:
                text = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def ended_reads(self) -> list[str]:
        """The reads that were deleted whole."""
        return [path for path in self.deleted if "/parts/" not in path]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def placed_on(*hosts: str, **changes: Any) -> Answer:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        size = body["size_bytes"] // len(hosts)
        parts = [{"replica": {"host": host, "port": 7000}, "client_port": body["client_ports"][index],
                  "offset_bytes": index * size, "size_bytes": size, "path": [host, "0" * 15 + "1", "10.0.0.9"],
                  "path_names": [host, "edge-p0r0", "10.0.0.9"], "estimated_bps": 8e7, "cost_seconds": 1.5,
                  **changes} for index, host in enumerate(hosts)]
        return 201, {"id": "r7", "parts": parts, "replica_policy": "mayflower", "path_policy": "mayflower"}
    return answer
