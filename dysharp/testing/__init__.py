"""Tests for code from outside: the conformance suite of systems, and random Programs and mutants for interpreters."""

from dysharp.testing.conformance import conformance

__all__ = ["conformance"]
