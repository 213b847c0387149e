"""Planning: which layout, and which shape of a model, trains fastest on a cluster. See README.md in this folder."""
