"""The paper, again: its claims checked, its figures and tables made, one catalogue and one report over all of them.

Nothing is imported here, so that asking for one part loads one part.
"""
