"""The claims of the paper, each with a check of its printed and of its right form."""

from unhinge.claims.registry import Claim, Record, UnknownClaim, claims, find

__all__ = ["Claim", "Record", "UnknownClaim", "claims", "find"]
