"""What every room uses: errors, units, files, text, processes. See README.md in this folder."""
