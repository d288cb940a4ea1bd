"""EDGE: the console, pages for people at ``/`` of ``--http``."""
