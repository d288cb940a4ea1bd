"""DNS messages as bytes: reading queries, writing replies. Only this folder imports dnslib."""
