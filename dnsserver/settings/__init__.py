# SPDX-License-Identifier: Apache-2.0

"""The settings: one frozen record, read once from flags, environment variables and a file."""
