"""The state of one cluster: takes deltas in, returns immutable snapshots."""
