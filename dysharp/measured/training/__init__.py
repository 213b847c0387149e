"""Measured training steps of whole models: rows, the setting that a row describes, and how far predictions are off."""
