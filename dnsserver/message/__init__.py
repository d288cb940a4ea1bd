"""DNS messages as bytes. Only this folder imports dnslib."""
