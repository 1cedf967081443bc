"""Which layers of a model compute in FP16, and which need more: measured, decided."""
