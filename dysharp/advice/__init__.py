"""Which system to run on a machine, how sure that is, and what one change would bring."""
