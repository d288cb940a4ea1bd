# SPDX-License-Identifier: Apache-2.0

"""EDGE: the certificate that the webhook serves: from files, or its own, kept in a Secret."""
