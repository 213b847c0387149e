"""Tests for what others write: the conformance suite of systems, random Programs and mutants to hold interpreters against each other."""

from dysharp.testing.conformance import conformance

__all__ = ["conformance"]
