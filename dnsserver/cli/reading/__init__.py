"""Reads what ``topodns doctor`` looks at: a cluster, the replicas in it, and their answers."""
