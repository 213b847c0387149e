"""The functional machine: real tensors through a Program, row by row or packet by packet (docs/design/0004)."""
