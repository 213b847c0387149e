"""The oracle: a slow interpreter of Programs, written from docs/design/0001 without code of the engine."""

from dysharp.oracle.run import run_oracle
