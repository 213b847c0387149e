"""Profiles of real runs (README.md)."""
