"""Relative differences below which the host loops treat numbers as equal."""

AT_ONE_TIME = 2e-15  # for the ends of flows
NEAR = 1e-12  # for levels of filling, and for the room on links
