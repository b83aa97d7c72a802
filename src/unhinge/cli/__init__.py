"""The command `unhinge`: parse, call, print. What a command needs is imported inside it, so that --help is quick."""

from unhinge.cli.app import app, main

__all__ = ["app", "main"]
