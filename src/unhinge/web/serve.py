"""Serve the page from this machine: threads, one port, and a warning when others can reach it."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import socketserver
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

__all__ = ["Server", "is_local", "serve"]

FIRST_PORT, TRIES = 8765, 20
SILENCE = 15.0  # seconds
LONGEST_HEAD = 20.0  # seconds for the first lines of a request


@dataclass(frozen=True)
class Server:
    """A server that is ready: `run()` answers until `stop()`."""

    server: BaseWSGIServer
    url: str

    def run(self) -> None:
        """Answer requests until stopped, or until Ctrl-C, which is passed on (werkzeug's own loop would hide it)."""
        from unhinge.web.app import LANES

        try:
            socketserver.TCPServer.serve_forever(self.server)
        finally:
            self.server.server_close()
            LANES.stop_helpers()

    def stop(self) -> None:
        """Stop answering, from another thread."""
        self.server.shutdown()


def is_local(host: str) -> bool:
    """Whether only this machine can reach the host.

    Example:
        >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0")
        (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    host: str = "127.0.0.1",
    port: int | None = None,
    results: str | Path = "results",
    token: str | None = None,
    helper: bool = False,
) -> Server:
    """A server of the page, bound but not yet answering.

    Arguments:
        host: Where to listen.
        port: The port; None takes 8765, or the next free one. A port that is asked for and taken is an OSError.
        results: The folder whose results can be browsed.
        token: What the address must hold; None lets every user of this machine read the page.
        helper: Whether other processes compute answers too: a second one, and where there are more cores, others when
            answers have to wait.
    """
    from werkzeug.serving import WSGIRequestHandler, make_server

    class TimedRequests(WSGIRequestHandler):
        """Waits for the lines of a request, but not for ever."""

        timeout = SILENCE  # between two bytes, set on the socket by the standard library

        def setup(self) -> None:
            super().setup()
            self._timer = threading.Timer(LONGEST_HEAD, self._close)
            self._timer.daemon = True
            self._timer.start()

        def _close(self) -> None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def run_wsgi(self) -> None:
            self._timer.cancel()  # the head is here; the body has a deadline of its own
            super().run_wsgi()

        def finish(self) -> None:
            self._timer.cancel()
            super().finish()

    from unhinge.web.app import LANES, make_app

    # Each request has a thread of its own; were torch to open a team of threads for each, they would fight for cores.
    torch.set_num_threads(1)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = make_app(results, (host, "127.0.0.1", "localhost", "::1") if is_local(host) else None, token)
    if port and not _is_free(host, port):  # werkzeug would print words of its own, and leave
        raise OSError(f"port {port} of {host} is taken, or not for you to listen on")
    chosen = port if port is not None else _free(host)
    family = "[" + host + "]" if ":" in host else host
    server = make_server(host, chosen, app.server, threaded=True, request_handler=TimedRequests)
    if helper:
        LANES.start_helper()
    return Server(server, f"http://{family}:{server.server_port}/" + (f"?token={token}" if token else ""))


def _free(host: str) -> int:
    ports = (port for port in range(FIRST_PORT, FIRST_PORT + TRIES) if _is_free(host, port))
    return next(ports, 0)  # 0: whatever the system has


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
