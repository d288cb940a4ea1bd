"""The edge of ``locator``: everything that reads files or talks to Kubernetes."""
