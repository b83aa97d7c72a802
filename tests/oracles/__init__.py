"""Slow answers, written from the definitions; they share no algebra with the package. One file for each room.

Those of the linear paths, and the ways to compare, are what most tests need: ``from oracles import worst``.
"""

from __future__ import annotations

from oracles import linear
from oracles.linear import *  # noqa: F403  # its own list of names says which

__all__ = linear.__all__
