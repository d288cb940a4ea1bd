# SPDX-License-Identifier: Apache-2.0

"""Why an answer is what it is."""
