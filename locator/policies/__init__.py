# SPDX-License-Identifier: Apache-2.0

"""The status of ServicePolicies: whether topodns accepts each, and whether it changes anything."""
