"""`main` runs the command line and turns exceptions into exit codes and one-line messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from dysharp.cli.app import cli
from dysharp.errors import DysharpError, one_line

INTERRUPTED = 130


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with a code: 0 done, 1 a check failed, 2 wrong input, 130 interrupted."""
    sys.exit(_run(args))


def _run(args: Sequence[str] | None) -> int:
    try:
        code = cli.main(args, prog_name="dysharp", standalone_mode=False)
        sys.stdout.flush()
    except DysharpError as error:
        return _print_error(str(error), error.exit_code)
    except click.ClickException as error:
        return _print_error(error.format_message(), 2 if isinstance(error, click.UsageError) else error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except MemoryError:
        return _print_error("out of memory; take fewer tokens or GPUs", 2)
    except BrokenPipeError:
        # The reader has gone (`| head`). Python flushes stdout once more at exit, so stdout is pointed at devnull.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _print_error(message: str, code: int) -> int:
    click.echo(f"dysharp: error: {one_line(' '.join(message.split()))}", err=True)
    return code
