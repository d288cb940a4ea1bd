# SPDX-License-Identifier: Apache-2.0

"""What ``make bench`` runs: how fast topodns is, compared with unbound and CoreDNS."""
