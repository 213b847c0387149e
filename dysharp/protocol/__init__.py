"""Tables and protocols as pure plain Python: `step(state, event) -> (state, outputs)` on hashable states."""
