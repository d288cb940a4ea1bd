"""Answers queries: a message as bytes in, the reply as bytes out."""
