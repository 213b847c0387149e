"""Building blocks of systems: what a plan function puts together. No module here registers a system."""
