"""How fast topodns is, beside unbound: what ``make bench`` runs."""
