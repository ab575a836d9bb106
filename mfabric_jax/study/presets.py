"""Named sets of assumptions; every part is a setting of its own and can be replaced.

- paper: the text of arXiv 2501.03905, which is what every default is.
- released: what the simulator that its authors released does beyond the text: one weight matrix for all blocks and
  micro-batches, its own greedy rule, every flow on one random shortest path over switches of 16 ports (circuits of a
  pair are one queue), all groups of the cluster at once, packets that wait for the switch; and TopoOpt in rings over
  the stage. How its rail-optimised and TopoOpt columns were made is not public: these are readings of them.
- today: experts compute what they receive, output head and optimizer step take time where they are known, and there are
  enough micro-batches for a small bubble.
"""

from collections.abc import Collection
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {
        "rule": "released",
        "flows": "single",
        "circuit_flows": "pooled",
        "busy": "cluster",
        "wiring": "rings",
        "eps_waits": True,
        "matrices": "one",
    },
    "today": {"bubble": 0.15, "expert_load": "received", "head": "known", "optimizer_step": "known"},
}

VARIANTS = {"variants": "usual"}
ONE_WAY = ("nic_use", "policy", "rule", "routing", "first", "predictor", "plan_on", "partial", "flows", "circuits_for")


def without_preset(given: Collection[str]) -> dict[str, Any]:
    """Defaults of every command line without a preset, where these settings are `given`; each command takes those that
    it has: "today", and fabrics shown in their usual variants unless something says in which way. Python, sweeps and
    reproductions of published figures keep the defaults of "paper"."""
    return PRESETS["today"] | ({} if set(ONE_WAY) & set(given) else VARIANTS)
