# SPDX-License-Identifier: Apache-2.0

"""What the console and the API show, as records."""
