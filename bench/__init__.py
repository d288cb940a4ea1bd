"""What ``make bench`` runs: how fast topodns is, compared with unbound and CoreDNS."""
