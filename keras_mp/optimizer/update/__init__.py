"""The update of the masters: by a kernel in one pass, or by the inner optimizer."""
