"""The engine for a CPU: compiled loops (numba, imported on first use) that update only what an event changes."""

AT_ONE_TIME = 2e-15  # relative difference below which ends of flows are equal
NEAR = 1e-12  # the same for levels of filling, and for the room on links
EXACT_PORTS = 96  # most ports of a star whose all-to-alls `routing.fixed` all computes exactly
