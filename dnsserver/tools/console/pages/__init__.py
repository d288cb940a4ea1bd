# SPDX-License-Identifier: Apache-2.0

"""The pages, one module for each: a function that makes it, and what no other page shows. ``areas`` are of the map."""
