# SPDX-License-Identifier: Apache-2.0

"""What the pages of the console show, as records. Nothing here knows of HTML."""
