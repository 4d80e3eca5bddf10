"""Who encrypts what goes out on the data channel: the kernel, where it and OpenSSL can, or this process.

OpenSSL hands a connection over to the kernel after its handshake where it is asked to, both can and its cipher is one
of the kernel's; the kernel then says so of the socket (TCP_ULP; the kernel's Documentation/networking/tls.rst).
"""

import socket
import ssl
import threading
from contextlib import suppress

from speedwell.fs.errors import reason
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import DATASERVER

TCP_ULP = 31
_NAME = b"tls"
SECONDS = 5.0


def use(identity: Identity) -> str:
    """Have a dataserver's connections handed over; returns who encrypts, for people. Found out by trying: a
    connection of this process to itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname(), SECONDS) as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, TCP_ULP, _NAME)
            except FileNotFoundError:
                return "by this process: the kernel has no TLS (CONFIG_TLS, or its module `tls` is not loaded)"
            except OSError as error:
                return f"by this process: the kernel refuses TLS: {reason(error)}"
            listening.accept()[0].close()
        identity.use_kernel_tls()
        with socket.create_connection(listening.getsockname(), SECONDS) as near:
            answering = threading.Thread(target=_answer, args=(identity, listening.accept()[0]))
            answering.start()
            try:
                with identity.wrap_client(near, DATASERVER) as secured:
                    taken = secured.getsockopt(socket.IPPROTO_TCP, TCP_ULP, 16).rstrip(b"\0")
            except OSError as error:
                return f"by this process: {reason(error)}"
            finally:
                answering.join()
    return "by the kernel" if taken == _NAME else f"by this process: {ssl.OPENSSL_VERSION} keeps it"


def _answer(identity: Identity, accepted: socket.socket) -> None:
    accepted.settimeout(SECONDS)
    with suppress(OSError), accepted, identity.server_context().wrap_socket(accepted, server_side=True) as secured:
        secured.recv(1)
