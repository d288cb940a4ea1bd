"""EDGE: what one replica writes to the API server while it leads."""
