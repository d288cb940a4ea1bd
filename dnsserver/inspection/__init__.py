"""What the HTTP API of a running server says, without I/O."""
