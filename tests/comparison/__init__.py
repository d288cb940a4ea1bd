"""What topodns and CoreDNS answer to the same questions about the same real cluster.

``cluster`` fills an API server, ``asking`` knows the questions and asks both, ``differences`` is the table of all that
differs on purpose. ``python -m tests.comparison`` prints that table as documentation.
"""
