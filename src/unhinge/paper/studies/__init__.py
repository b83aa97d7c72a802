"""The tables and figures of trained networks: cells, who runs them, what they say."""
