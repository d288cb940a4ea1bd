# SPDX-License-Identifier: Apache-2.0

"""The state of one cluster: takes deltas in, returns immutable snapshots."""
