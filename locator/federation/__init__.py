# SPDX-License-Identifier: Apache-2.0

"""Several clusters read as one: what a name means in all of them. Pure."""
