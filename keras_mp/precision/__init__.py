"""Which layer of a model computes in which precision."""
