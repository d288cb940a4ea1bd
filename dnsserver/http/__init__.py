"""The edge that speaks HTTP: health and metrics."""
