# SPDX-License-Identifier: Apache-2.0

"""What a Service asks for, and which endpoints a client gets."""
