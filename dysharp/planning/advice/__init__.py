"""Which system to run on a machine, how sure the advice is, and what one change would bring."""
