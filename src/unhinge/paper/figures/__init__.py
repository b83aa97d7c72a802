"""The numerical figures: exact paths as lines, simulated SGD as markers."""
