"""One file per measured family, or per group of families that share a case; `measured.family` finds them by scanning."""
