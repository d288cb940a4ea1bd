"""Health by quorum: one prober in each cluster votes, and whoever answers counts."""
