"""Names outside the zones, which an upstream resolves."""
