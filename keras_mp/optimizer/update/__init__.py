"""The update of the masters, by one call of a kernel or by the inner optimizer."""
