"""Serve the page from this machine: threads, one port, and a warning when others can reach it."""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Served", "is_local", "serve"]

TRIES = 20


@dataclass(frozen=True)
class Served:
    """A server that is ready: `run()` answers until `stop()`."""

    server: Any
    url: str

    def run(self) -> None:
        """Answer requests until stopped."""
        self.server.serve_forever()

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


def serve(host: str = "127.0.0.1", port: int | None = None, results: str | Path = "results") -> Served:
    """A server of the page, bound but not yet answering.

    Arguments:
        host: Where to listen.
        port: The port; None takes 8765, or the next free one. A port that is asked for and taken is an OSError.
        results: The folder whose results can be browsed.
    """
    from werkzeug.serving import make_server

    from unhinge.web.app import make_app

    # Each request has a thread of its own; were torch to open a team of threads for each, they would fight for cores.
    torch.set_num_threads(1)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = make_app(results, (host, "127.0.0.1", "localhost", "::1") if is_local(host) else None)
    chosen = port if port is not None else _free(host)
    family = "[" + host + "]" if ":" in host else host
    server = make_server(host, chosen, app.server, threaded=True)
    return Served(server, f"http://{family}:{server.server_port}/")


def _free(host: str, first: int = 8765) -> int:
    for port in range(first, first + TRIES):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    return 0  # whatever the system has
