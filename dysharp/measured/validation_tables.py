"""Columns of the tables of `Validation`: the screen, the page and its CSV files read them; a colon marks numbers."""

from dysharp.base.columns import Columns

_ERRORS = "n: median_ape: p90_ape: bias:"


def _columns(words: str) -> Columns:
    return Columns(*words.split())


FAMILIES = _columns("family by n: n_rows: coverage: median_ape: p90_ape: mape: bias:")
BARS = _columns("name value: bar: holds:")
FITS = _columns("part fitted: counted: total: budget: holds: later:")
SIMULATORS = _columns("paper: measured: published_mape: n: mape: median_ape: p90_ape: bias:")
PARTS = _columns(f"family part {_ERRORS}")
APART = _columns(f"family group {_ERRORS} all_median_ape: all_p90_ape:")
FORMS = _columns("family n: closed_over_program: p90_apart: closed_median_ape: closed_p90_ape:")
SOURCES = _columns("family source other n: least: median: most:")
HOLD_OUT = _columns("by family n: groups: fit: held_out: ratio:")
BEYOND = _columns("family by system hardware n: n_rows: median_ape: p90_ape: bias: closed_median_ape: unpredicted")
BETWEEN = _columns("family between by system hardware n: n_rows: median_ape: p90_ape: bias: closed_median_ape: unpredicted")
GROUPS = _columns("family kind system hardware regime n: median_ape: p90_ape: mape: bias:")
REGIMES = _columns(f"family regime predicted_as {_ERRORS}")
SIZES = _columns(f"family from_us: to_us: {_ERRORS}")
WORST = _columns("id family hardware measured: predicted: unit error:")
BORROWED = _columns("by held_out: constant from")
CONSTANTS = _columns("name value: unit seen_by: meaning fitted_on")
COUNTED = _columns("module name count: of text")
UNPREDICTED = _columns("family kind system hardware n: counts_for_coverage: reason")
REASONS = _columns("reason n: kinds ids")
ABSENT = _columns("family kind system hardware n: reason ids")
