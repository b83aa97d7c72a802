r"""Losses near zero logits: the first phase of cross-entropy, exactly, with a proved bound of the error."""
