"""EDGE: receives queries from sockets, and sends the replies."""
