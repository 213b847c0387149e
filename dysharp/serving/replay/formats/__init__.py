"""Traces of requests as their publishers write them. One file a format: `fits` knows the first line, `read` makes requests of all lines."""
