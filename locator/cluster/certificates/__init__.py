"""EDGE: the certificate that the webhook serves: from files, or its own, kept in a Secret."""
