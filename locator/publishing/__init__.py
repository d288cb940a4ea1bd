# SPDX-License-Identifier: Apache-2.0

"""Federated names as DNSEndpoints, from which external-dns writes them to other people's DNS. Pure."""
