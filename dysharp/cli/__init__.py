"""The command line: one thin command per public verb. See README.md in this folder."""

from dysharp.cli.entry import main
