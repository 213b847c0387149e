"""Results as text: what the commands print."""
