"""Resolve a case: open values, limits, and the engine's input; `evaluate` exports these names."""
