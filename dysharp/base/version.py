"""The version of the simulated numbers, which every answer states."""

MODEL_VERSION = "38"
"""VERSIONS.md names every number that a new version moved, and the reason."""
