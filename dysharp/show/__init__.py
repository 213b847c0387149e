"""Plots of Rows. See README.md in this folder."""
