"""The JSON of Kubernetes objects and the list/watch protocol, without I/O."""
