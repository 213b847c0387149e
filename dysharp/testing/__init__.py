"""Tests for code from outside: the conformance suite of systems."""

from dysharp.testing.conformance import conformance
