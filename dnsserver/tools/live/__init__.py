# SPDX-License-Identifier: Apache-2.0

"""What a server remembers of the answers that it gave: how many, to whom, and why some clients got nothing near."""
