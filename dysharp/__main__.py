"""`python -m dysharp` is the command line."""

from dysharp.cli import main

main()
