# SPDX-License-Identifier: Apache-2.0

"""What to try topodns with: a cluster, and a day in it."""
