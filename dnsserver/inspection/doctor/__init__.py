"""What ``topodns doctor`` concludes from what it has read of a cluster."""
