# SPDX-License-Identifier: Apache-2.0

"""Commands about topodns itself: its versions, its manual page, and what completes its command line."""
