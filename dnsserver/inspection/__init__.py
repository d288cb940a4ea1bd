# SPDX-License-Identifier: Apache-2.0

"""What a running server says of itself, without I/O."""
