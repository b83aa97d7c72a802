"""Features that share parameters: paths through a constant kernel, and a network's own kernel."""
