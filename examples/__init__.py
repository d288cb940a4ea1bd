"""What to try topodns with: a cluster, and a day in it."""
