# SPDX-License-Identifier: Apache-2.0

"""What looks on from outside. No query passes through it, and only ``cli`` and ``programs`` import it."""
