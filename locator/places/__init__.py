# SPDX-License-Identifier: Apache-2.0

"""Which object holds an address, and where that is."""
