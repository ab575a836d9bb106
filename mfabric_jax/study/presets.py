"""Named sets of assumptions; every part is a setting of its own and can be replaced.

- paper: the text of arXiv 2501.03905, which is what every default is.
- released: what the simulator that its authors released does beyond the text: one weight matrix for all blocks and
  micro-batches, its own greedy rule, every flow on one random shortest path, packets that wait for the switch.
"""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {"rule": "released", "flows": "single", "eps_waits": True, "matrices": "one"},
}
