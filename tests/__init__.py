"""The tests of topodns."""
