"""`--fresh`, and the results that `compare` and `advise` keep in the user's cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from dysharp.base import ConfigError, cache_folder, make_folder
from dysharp.runs.arguments import Argument
from dysharp.show.output import print_later, warn

_FRESH = "simulate all again. Without --fresh, results of the same inputs and the same code are read from the user's cache. Also: DYSHARP_FRESH=1."
Fresh = Annotated[bool, Argument(False, _FRESH), {"envvar": "DYSHARP_FRESH"}]


@contextmanager
def kept_rows(fresh: bool) -> Iterator[None]:
    """Keep Rows in the user's cache, and say how many were read. Without a writable cache all Rows are simulated."""
    folder = cache_folder("rows")
    try:
        make_folder(folder, "kept results")
    except ConfigError:
        fresh = True
    if fresh:
        yield
        return
    from dysharp.runs.kept import rows_kept_in

    with rows_kept_in(folder) as kept:
        yield
    if kept.problem:
        warn(f"results are not kept: {kept.problem}")
    if kept.read:
        found = f"{kept.read} of {kept.read + kept.ran} results were read from {folder}: same inputs, same code"
        print_later(f"{found}. --fresh simulates them again.")
