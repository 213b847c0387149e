"""Thousands of points: a grid, a Latin hypercube or a search, in a folder that DuckDB reads."""
