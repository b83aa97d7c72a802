"""What every response carries and every request must have: no other host, no frame, no stack trace."""

from __future__ import annotations

from collections.abc import Sequence

import dash
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

__all__ = ["guard"]

# 'unsafe-eval': Plotly compiles the shaders' helpers of its 3-D pictures; styles are set by script throughout.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval' {hashes}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)


def guard(server: Flask, hosts: Sequence[str] | None, app: dash.Dash) -> None:
    """Refuse requests under foreign names, forbid the browser any other host, and turn failures into one sentence."""
    made: list[str] = []

    def known() -> Response | None:
        name = request.host.rpartition(":")[0] if ":" in request.host else request.host
        if hosts is not None and name.strip("[]") not in hosts:
            return Response("This page answers on its own machine only.\n", status=403, mimetype="text/plain")
        return None

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
