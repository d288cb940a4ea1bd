"""Names, messages and servers: answers DNS queries from what ``locator`` knows."""

__version__ = "0.1.0"
