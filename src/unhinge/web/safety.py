"""What every response carries and every request must have: no other host, no frame, no stack trace, a token, an end."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import dash
from flask import Flask, Response, redirect, request
from werkzeug.exceptions import HTTPException

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

__all__ = ["deadline", "guard"]

# 'unsafe-eval': Plotly compiles the shaders' helpers of its 3-D pictures; styles are set by script throughout.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval' {hashes}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)


NO_TOKEN = "This page needs the token that unhinge explore printed: open the whole address, with ?token=... in it.\n"


@contextmanager
def deadline(environ: WSGIEnvironment, seconds: float) -> Iterator[None]:
    """Reading a request ends after so many seconds, however slowly its bytes drip; what is missing is then an error."""
    wire: socket.socket | None = environ.get("werkzeug.socket")  # none in a test without a server

    def hang_up() -> None:
        if wire is not None:
            with suppress(OSError):  # gone by itself
                wire.shutdown(socket.SHUT_RD)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def guard(server: Flask, hosts: Sequence[str] | None, app: dash.Dash, token: str | None) -> None:
    """Refuse requests under foreign names or without the token, forbid the browser any other host, and turn failures
    into one sentence.

    A token in the address moves into a cookie of this port, and the address is shown without it: it can be shared.
    """
    made: list[str] = []

    def known() -> Response | None:
        name = request.host.rpartition(":")[0] if ":" in request.host else request.host
        if hosts is not None and name.strip("[]") not in hosts:
            return Response("This page answers on its own machine only.\n", status=403, mimetype="text/plain")
        return None if token is None else admitted(token)

    def admitted(wanted: str) -> Response | None:
        name = f"unhinge-{request.environ.get('SERVER_PORT', '')}"  # cookies do not know of ports
        if _same(request.cookies.get(name), wanted) or _same(request.headers.get("X-Unhinge-Token"), wanted):
            return None
        if not _same(request.args.get("token"), wanted):
            return Response(NO_TOKEN, status=403, mimetype="text/plain")
        rest = urlencode([pair for pair in request.args.items(multi=True) if pair[0] != "token"])
        response = redirect(request.path + (f"?{rest}" if rest else ""))
        response.set_cookie(name, wanted, httponly=True, samesite="Lax")
        return response  # type: ignore[return-value]  # werkzeug's response, which Flask sends as well

    def closed(response: Response) -> Response:
        if not made:  # after the first page, when Dash knows its inline scripts
            made.append(POLICY.format(hashes=" ".join(app.csp_hashes())))
        response.headers.setdefault("Content-Security-Policy", made[0])
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.setdefault("Referrer-Policy", "no-referrer")
        return response

    def failed(error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return Response(f"{error.description}\n", status=error.code, mimetype="text/plain")
        server.logger.error("a request failed", exc_info=error)
        return Response("The request could not be answered.\n", status=500, mimetype="text/plain")

    server.before_request(known)
    server.after_request(closed)
    server.register_error_handler(Exception, failed)


def _same(given: str | None, wanted: str) -> bool:
    """Whether the token is right, in a time that does not tell how much of it is."""
    return given is not None and hmac.compare_digest(given.encode(), wanted.encode())
