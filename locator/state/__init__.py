"""One cluster as a value that changes: deltas in, immutable snapshots out."""
