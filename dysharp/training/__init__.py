"""Training steps of whole models: memory, schedules, costs, times. See README.md in this folder."""
