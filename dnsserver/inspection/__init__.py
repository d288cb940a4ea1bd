"""What a running server says of itself, without I/O."""
