"""The second opinion: a slow interpreter of a Program, written from docs/design/0001 alone."""

from dysharp.oracle.run import run_oracle

__all__ = ["run_oracle"]
