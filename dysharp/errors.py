"""The errors that a caller may want to catch, under the names of docs/api.md."""

from dysharp.base import ConfigError, DysharpError, EmulationMismatch, IsaError, MissingExtra, OverShare, ProgramError, SimulationError

__all__ = ["ConfigError", "DysharpError", "EmulationMismatch", "IsaError", "MissingExtra", "OverShare", "ProgramError", "SimulationError"]
