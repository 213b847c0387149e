"""Blocks of hardware in Amaranth (extra "rtl"), each with a cycle-exact model on `protocol/`."""
