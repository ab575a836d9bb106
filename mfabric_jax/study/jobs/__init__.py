"""Several training jobs on one fabric: read, run as one graph of flows, shifted (CASSINI) or weighted (MLTCP)."""
