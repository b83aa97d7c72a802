"""The claims of the paper, each with a check of its printed and of its right form."""

from unhinge.claims.names import UnknownClaim, find
from unhinge.claims.registry import Claim, Record, Sharper, claims

__all__ = ["Claim", "Record", "Sharper", "UnknownClaim", "claims", "find"]
