"""Decides the answer to each query: which records a client gets, and why."""
