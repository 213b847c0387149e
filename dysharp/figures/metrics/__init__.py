"""One file per group of metrics, or per calculated system; `figures.metric` finds them by scanning."""
