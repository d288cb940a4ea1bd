"""Kubernetes' JSON and its list/watch protocol, without I/O."""
