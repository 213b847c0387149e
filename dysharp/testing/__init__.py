"""Programs nobody would write, to hold interpreters against each other."""
