# SPDX-License-Identifier: Apache-2.0

"""``make federation``: a federation API and three clusters on this machine, to look at federated creation by hand."""
