"""Writes the files of a user: complete, or not at all. No other module writes them."""

import atexit
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from dysharp.base.errors import ConfigError
from dysharp.base.values import AnyPath

PREFIX = ".dysharp-"
"""Begin of the names of unfinished files. They do not carry the name of the file, which may have the full length already."""


def check_destination(path: AnyPath, *endings: str) -> Path:
    """`path` as a `Path` to which `write_file` can write. Call it before long work.

    Raises ConfigError for a name without one of the `endings` (none = any), for a folder, and for a folder without write access.
    """
    file = Path(path)
    if not os.fspath(path).isprintable():
        raise ConfigError(f"{file}: cannot be written: found a control character in the name, expected a printable name")
    if endings and not file.name.endswith(endings):
        raise ConfigError(f"{file}: found the ending {file.suffix!r}, expected {' or '.join(endings)}")
    try:
        if not file.name or file.is_dir():
            raise ConfigError(f"{os.fspath(path)!r}: cannot be written: found a folder, expected the name of a file")
        if _is_stream(file):
            return file
        folder = file.resolve().parent
        if not folder.is_dir():
            raise ConfigError(f"{file}: cannot be written: found no folder {str(folder)!r}, expected an existing one")
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"{file}: cannot be written: found no write access to the folder {str(folder)!r}")
    except (OSError, ValueError) as error:  # a name that is too long, or with a NUL
        raise ConfigError(f"{file}: cannot be written: {_reason(error)}") from None
    return file


def check_folder(path: AnyPath) -> Path:
    """`path` as a folder to write to: one that exists, or one that can be made. Raises ConfigError for any other."""
    folder = Path(path)
    try:
        nearest = next(part for part in (folder.absolute(), *folder.absolute().parents) if part.exists())
    except (OSError, ValueError) as error:  # a name that is too long, or with a NUL
        raise ConfigError(f"folder {folder}: cannot be made: {_reason(error)}") from None
    if not (os.fspath(path) and nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ConfigError(f"folder {os.fspath(path)!r}: cannot be written: expected a folder with write access")
    return folder


def cache_folder(name: str) -> Path:
    """`dysharp/NAME` in the user's cache folder (XDG); where that cannot be written, in a folder for temporary files that only the user can enter."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _cache(Path(home) / "dysharp") / name


def cache_notes() -> list[str]:
    """What to tell a user whose cache folder could not be used by this process."""
    kept = [(asked, f"kept in {found}" if found else "not kept") for asked, found in _elsewhere.items()]
    return [f"{asked} cannot be written: kernels and results are {where}" for asked, where in kept]


_elsewhere: dict[Path, Path | None] = {}


@functools.cache
def _cache(asked: Path) -> Path:
    try:
        make_folder(asked, "cache")
        return asked
    except ConfigError:
        _elsewhere[asked] = None
        with suppress(OSError):  # no folder for temporary files
            _elsewhere[asked] = _own_temporary()
        return _elsewhere[asked] or asked


def _own_temporary() -> Path:
    """The same folder for each process of this user. Where somebody else has it, a new one: what is compiled there is run."""
    own = getattr(os, "getuid", lambda: 0)()
    folder = Path(tempfile.gettempdir()) / f"dysharp-{own}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == own and not found.st_mode & 0o077:
            return folder
    new = tempfile.mkdtemp(prefix="dysharp-")
    atexit.register(shutil.rmtree, new, ignore_errors=True)
    return Path(new)


def make_folder(folder: Path, what: str) -> None:
    """Make `folder`, with its parents, and write to it once. `what`: its name in errors.

    Raises ConfigError if the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"{what} {folder}: {_reason(error)}, expected a folder to write to") from None


def write_text(path: AnyPath, text: str, *, in_place_of_links: bool = False) -> Path:
    """Write `text` as UTF-8. Raises ConfigError as `write_file`."""
    return write_file(path, lambda stream: stream.write(text.encode("utf-8", "backslashreplace")), in_place_of_links=in_place_of_links)


def write_file(path: AnyPath, write: Callable[[IO[bytes]], object], *, in_place_of_links: bool = False) -> Path:
    """Call `write` with a temporary file, rename the file to `path`, return the path. A device or a pipe is written directly.

    in_place_of_links  replace a link, a device or a pipe by the file, as in a folder that may come from somebody else

    The temporary file is removed when anything fails. Raises ConfigError for a folder that cannot be written to and for
    a full disk.
    """
    file = check_destination(path)
    try:
        if in_place_of_links:
            _replace(file.absolute(), write)
        elif _is_stream(file):
            with file.open("wb") as stream:
                write(stream)
        else:
            _replace(file.resolve(), write)  # a link stays a link
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {_reason(error)}") from None
    return file


def _replace(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=PREFIX, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        mode = os.umask(0)
        os.umask(mode)
        os.chmod(temporary, 0o666 & ~mode)  # mkstemp sets 0600
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


def _is_stream(file: Path) -> bool:
    """Whether `file` is a device or a pipe, such as /dev/null: a rename would replace it."""
    return file.exists() and not file.is_file() and not file.is_dir()


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
