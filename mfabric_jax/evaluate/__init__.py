"""Iterations evaluated: policy, seconds of all-to-alls and clock, in batches on the host or composed in one program."""
