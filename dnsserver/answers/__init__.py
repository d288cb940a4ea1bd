"""What a name is answered, for whom, and why."""
