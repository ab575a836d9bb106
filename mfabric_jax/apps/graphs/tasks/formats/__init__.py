"""File formats of task graphs."""
