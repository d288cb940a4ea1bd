"""What is where in a cluster, and what each Service asks for.

Knows nothing of DNS messages: ``dnsserver`` imports this package, never the other way round.
"""
