"""What a Service asks for, and which endpoints a client gets."""
