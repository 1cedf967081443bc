"""Conversion of the layers of a model to `keras_mp` layers, and back."""
