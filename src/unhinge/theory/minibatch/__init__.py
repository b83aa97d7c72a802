"""Minibatch SGD: the mean path and its second moments."""
