"""Conversion of the layers of a model to those of `keras_mp`, and back."""
