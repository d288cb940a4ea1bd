"""What is counted, and how Prometheus reads it."""
