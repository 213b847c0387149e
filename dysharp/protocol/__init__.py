"""Tables and protocols as pure plain Python: `step(state, choice) -> state` on hashable states."""
