"""What is left of the settings of 0.1."""
