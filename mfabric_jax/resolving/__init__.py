"""What a case stands for: values that it leaves open, limits, and what the engine reads; `simulation` exports it."""
