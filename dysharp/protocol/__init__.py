"""Tables and protocols in pure Python: `step(state, event) -> (state, outputs)` on hashable states."""
