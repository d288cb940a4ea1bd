# SPDX-License-Identifier: Apache-2.0

"""Where everything in a cluster is, and what each Service asks for.

``dnsserver`` imports this package, never the other way round: nothing here knows DNS messages.
"""
