"""The claims of the paper, each with a check of its printed and of its right form."""

from unhinge.paper.claims.beyond import own_statements
from unhinge.paper.claims.names import UnknownClaim, find
from unhinge.paper.claims.registry import Claim, Record, SharperCheck, claims

__all__ = ["Claim", "Record", "SharperCheck", "UnknownClaim", "claims", "find", "own_statements"]
