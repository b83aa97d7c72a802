"""Free features and prototypes: spectrum (labels), summary (start) and propagator (optimizer) meet in a path."""
