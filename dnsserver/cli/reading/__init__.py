"""Reads what ``topodns doctor`` looks at (a cluster, its replicas, their answers) and what ``simulate`` simulates."""
