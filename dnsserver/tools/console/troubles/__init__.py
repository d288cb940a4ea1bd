# SPDX-License-Identifier: Apache-2.0

"""What is wrong now: in a simulation in which each pod asks once, in live traffic, with the sources, and by checks."""
