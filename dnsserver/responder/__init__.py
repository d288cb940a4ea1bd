# SPDX-License-Identifier: Apache-2.0

"""Answers queries: a message as bytes in, the reply as bytes out."""
