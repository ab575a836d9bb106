"""What counts as equal in the loops of the host, as relative differences."""

AT_ONE_TIME = 2e-15  # ends
NEAR = 1e-12  # levels of filling, and rooms of links
