"""The groups of tracks of a GPU, in the order of the viewer."""

POOL_GROUP = "SMs"
UP_GROUP, DOWN_GROUP = "up link", "down link"
GROUPS = ("operators", POOL_GROUP, UP_GROUP, DOWN_GROUP)
