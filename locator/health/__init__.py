# SPDX-License-Identifier: Apache-2.0

"""Health by quorum: one prober in each cluster votes, and whoever answers counts."""
