"""One machine that runs points: request, options, leading tokens, memory, key, store, processes."""
