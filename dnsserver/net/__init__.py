"""The edge of ``dnsserver``: sockets in, sockets out."""
