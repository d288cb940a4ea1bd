# SPDX-License-Identifier: Apache-2.0

"""What ``topodns doctor`` concludes from what it has read of a cluster."""
