# SPDX-License-Identifier: Apache-2.0

"""DNS messages as bytes: reading queries, writing replies. Only this folder imports dnslib."""
