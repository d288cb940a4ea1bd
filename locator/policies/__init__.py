"""The status of ServicePolicies: whether topodns accepts each, and whether it changes anything."""
