"""The tables and figures of trained networks, one file for each kind: which recipe of the book stands where."""
