"""Packet-level runs made by hand."""

MB = 10**6
TREE = "fat-tree, 8 hosts, non-blocking"
LEAF_SPINE = "leaf-spine, 4 hosts, 2 ToR with 2 host ports and 1 uplinks"


def flow(src, dst, size=1, fct_s=0.01, **more):
    return {"src": src, "dst": dst, "bytes": size, "start": 0.0, "fct_s": fct_s, **more}


def run_of(flows, **changed):
    """A run at 1 GB/s, of which headers take a quarter."""
    return {
        "name": "hand-made",
        "topology": TREE,
        "transport": "own",
        "routing": "per-packet spraying",
        "link_bps": 8e9,
        "payload_per_packet": 3,
        "header_per_packet": 1,
        "collective_s": max((f["fct_s"] for f in flows), default=0.01),
        "flows": flows,
    } | changed
