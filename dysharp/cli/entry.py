"""`main` runs the command line and turns exceptions into exit codes and one-line messages."""

import _thread
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import ClassVar, NoReturn

import click

from dysharp.base.errors import DysharpError, one_line, shortened
from dysharp.base.files import cache_notes
from dysharp.cli.app import cli
from dysharp.show.output import warn

AGAIN_S = 0.05
"""From an interruption that was dropped to the next."""
_NOT_WRITTEN = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)  # what a full disk does to stdout


class _Ended(KeyboardInterrupt):
    """Ctrl-C, or another process asked this one to end: processes are ended and temporary files removed.

    It may be raised where no error passes, as in what LLVM calls when it has compiled. It is dropped there, so it comes again until all is over.
    """

    over: ClassVar = False
    comes: ClassVar = False

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __del__(self) -> None:
        if not (_Ended.over or _Ended.comes):  # of several that were dropped one comes: a second one would end what the first one has to say
            _Ended.comes = True
            again = threading.Timer(AGAIN_S, _again, [self.number])
            again.daemon = True
            again.start()


def _again(number: int) -> None:
    _Ended.comes = False
    if _Ended.over:
        return
    if hasattr(signal, "pthread_kill"):  # a signal wakes a main thread that waits for a lock; `interrupt_main` does not
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        _thread.interrupt_main(signal.Signals(number))


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with a code: 0 done, 1 a check failed, 2 wrong input, 130 interrupted, 128 + N ended by signal N."""
    _open_streams()
    _end_on_signals()
    try:
        code = _run(args)
        for note in cache_notes():
            warn(note)
    finally:
        _Ended.over = True  # no thread begins while Python ends
    sys.exit(code)


def _open_streams() -> None:
    """Make stdin, stdout and stderr usable: a closed one is /dev/null; what an encoding lacks is escaped."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open until the end of the process
    if sys.stdout is None:
        sys.exit(_print_error("stdout is closed, expected a stream for the result", 2))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end_on_signals() -> None:
    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Ended(number)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # nohup ignores SIGHUP
            signal.signal(number, end)
    sys.unraisablehook = lambda dropped: None if dropped.exc_type is _Ended else sys.__unraisablehook__(dropped)


def _run(args: Sequence[str] | None) -> int:
    try:
        code = cli.main(args, prog_name="dysharp", standalone_mode=False)
        sys.stdout.flush()
    except (DysharpError, click.ClickException, MemoryError) as error:
        return _print_error(*_message_of(error))
    except (click.Abort, KeyboardInterrupt) as error:
        return _print_interrupted(error)
    except OSError as error:
        return _without_stdout(error)
    return code if isinstance(code, int) else 0


def _message_of(error: DysharpError | click.ClickException | MemoryError) -> tuple[str, int]:
    """Message and exit code."""
    if isinstance(error, DysharpError):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message() + _option_for(error), 2 if isinstance(error, click.UsageError) else error.exit_code
    return "out of memory; take fewer tokens, bytes or GPUs", 2


def _option_for(error: click.ClickException) -> str:
    """The option for the name of a model, cluster or system that was typed without its option; "" for other errors."""
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.+)\)", error.format_message())
    if extra is None or not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    from dysharp.specs import list_clusters, list_models
    from dysharp.systems import all_systems

    known = {"--model": list_models(), "--cluster": list_clusters(), "--systems": list(all_systems())}
    taken = {option for parameter in error.ctx.command.params for option in parameter.opts}
    words = extra[1].split()
    meant = next((o for o, names in known.items() if o in taken and {*words} <= {*names} and (len(words) == 1 or o == "--systems")), "")
    return f"; expected {meant} {','.join(words)}" if meant else ""


def _without_stdout(error: OSError) -> int:
    """Exit code when stdout cannot be written; raises every other error again."""
    gone = isinstance(error, BrokenPipeError)  # the reader has gone (`| head`), which is no error
    if not gone and (error.errno not in _NOT_WRITTEN or error.filename is not None):
        raise error
    # Python flushes stdout once more at exit, so stdout is pointed at devnull.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if gone else _print_error(f"stdout: cannot be written: {error.strerror}", 1)


def _print_interrupted(error: click.Abort | KeyboardInterrupt) -> int:
    """What happened, and the notes that say what was kept."""
    if isinstance(error, click.Abort):  # click makes it of Ctrl-C, and of an EOFError, which is a fault of this program
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise error
        error = error.__cause__
    number = signal.Signals(error.number) if isinstance(error, _Ended) else signal.SIGINT
    what = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    notes: list[str] = []
    cause: BaseException | None = error
    while cause is not None:  # a second Ctrl-C may arrive while the first one passes
        notes += getattr(cause, "__notes__", ())
        cause = cause.__context__
    return _print_line("; ".join([what, *notes]), 128 + number)


def _print_error(message: str, code: int) -> int:
    return _print_line(f"error: {message}", code)


def _print_line(message: str, code: int) -> int:
    click.echo(f"dysharp: {one_line(shortened(' '.join(message.split())))}", err=True)
    return code
