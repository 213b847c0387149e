"""One file per measured family, or per families that share a case; `measured.family` finds them by scanning."""
