"""What a controller is made of, without I/O."""
