"""Which topology serves a mixture of experts at the least cost? Scale-up switches, trees, torus, full mesh, circuits.

64 GPUs that share the experts of DeepSeek-V3, decoding: one scale-up domain, a 3-D torus and a 3-D full mesh of GPUs
(the same bandwidth of a GPU in all three), a tree and a multi-plane tree of NICs, and mFabric, with and without a
second micro-batch that hides communication and with drafted tokens. Every set-up has the batch that is best within a
time a token. Question and topologies: arXiv 2605.00254, of which only the abstract could be read: its prices, targets
and sizes of clusters could not. So dollars here are from this package's parts, what a scale-up port costs is assumed,
and direct links have two prices: NICs with optics, or copper between ports of GPUs (half a cable an end, assumed).
Kernels have no limit but their links, and one latency a call for all topologies alike. Published (abstract): switchless
topologies serve 20.6 to 56.2 % more for a dollar than scale-up.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from mfabric_jax.apps.serving import serve
from mfabric_jax.case import Case
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.units import gigabytes_per_s, ms, to_gbps, us

from .pictures import lines
from .rows import Rows, adding, pivot, then, told
from .script import Found, Script, Verdict, against, cells, check

SHAPE = "4x4x4"
GPUS = 64
FULL = 450  # GB/s of a GPU whose scale-up network has a price here
LINKS = {"torus": 6, "full mesh": 9}  # of a GPU
WAYS = {"alone": {"serving.overlap": False}, "overlap": {"serving.overlap": True}}
WAYS |= {"overlap and a draft": {"serving.overlap": True, "serving.drafts.tokens": 1}}
SWITCHLESS = ("torus", "full mesh")
COPPER = "transceiver = [15, 25, 50, 100]\nnic = [1, 1, 1, 1]\n[watts]\ntransceiver = [0.1, 0.1, 0.1, 0.1]\n"
COPPER += "nic = [1, 1, 1, 1]\n"  # half a cable at each end, assumed; the port is the GPU's
LINKS_OF = {"optical": "", "copper": COPPER}  # what direct links add to prices
PUBLISHED = (1.206, 1.562)  # tokens a dollar, over scale-up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What serves, how fast it must, and what is assumed."""

    gpu: str = "H200-SXM"
    topologies: tuple[str, ...] = ("scale-up", "torus", "full mesh", "fat-tree", "multi-plane", "mfabric")
    links: tuple[str, ...] = tuple(LINKS_OF)  # Of torus and full mesh.
    gigabytes_per_s: tuple[float, ...] = (150.0, 225.0, 300.0, 450.0)  # Of a GPU: of scale-up, torus and full mesh.
    tpot_ms: tuple[float, ...] = (25.0, 50.0, 100.0)  # At most so long from token to token.
    ways: tuple[str, ...] = tuple(WAYS)  # What hides communication.
    accepted: float = 0.7  # Of drafted tokens.
    alpha_us: float = 20.0  # Of a call.
    scale_up_usd: float = 9000.0  # Of a GPU's part of a scale-up network of 450 GB/s, in proportion below; assumed.

    def __post_init__(self):
        check(self, positive="gigabytes_per_s tpot_ms alpha_us scale_up_usd", known={"ways": WAYS, "links": LINKS_OF})


def settings(config: Config, topology: str, links: str, rate: float, folder: Path) -> dict[str, Any]:
    """Those of a topology whose GPUs have `rate` GB/s in all; trees and mFabric have a NIC of 400 Gbps a GPU."""
    if topology == "scale-up":
        prices = folder / "prices.toml"
        dollars = config.scale_up_usd * rate / FULL
        prices.write_text(f"scale_up_per_gpu = {dollars}\n[watts]\nscale_up_per_gpu = 0\n")
        ports = {"gpus": GPUS, "ports": 9, "port_gigabytes_per_s": rate / 9}
        found = {f"network.scale-up.{name}": value for name, value in ports.items()}
        return found | {"network.fabric": "scale-up", "network.prices": str(prices)}
    if topology not in SWITCHLESS:
        return {"network.fabric": topology}
    gbps = to_gbps(gigabytes_per_s(rate)) / LINKS[topology]
    found: dict[str, Any] = {"gpu.gpus_per_server": 1, "network.nic_gbps": gbps}
    if links != "optical":
        (folder / "copper.toml").write_text(LINKS_OF[links])
        found["network.prices"] = str(folder / "copper.toml")
    if topology == "full mesh":
        return found | {
            "network.fabric": "full-mesh",
            "network.full-mesh.shape": SHAPE,
            "network.nics": LINKS[topology],
        }
    file = folder / f"torus-{rate:g}.json"
    file.write_text(graph_text(make_graph("torus", GraphNumbers(gpus=GPUS, nic_gbps=gbps, shape=(4, 4, 4)))))
    return found | {"network.fabric": "graph", "network.graph": str(file)}


def run(config: Config) -> Found:
    """A row for each set-up: the fastest batch within its time, and tokens a dollar."""
    with tempfile.TemporaryDirectory() as folder:
        axes = config.topologies, config.links, config.gigabytes_per_s, config.ways, config.tpot_ms
        for topology, links, rate, way, tpot_ms in cells(config, *axes):
            if topology not in SWITCHLESS and links != config.links[0]:
                continue
            if topology not in ("scale-up", *SWITCHLESS) and rate != config.gigabytes_per_s[0]:
                continue  # their bandwidth is their NICs'
            changes = WAYS[way] | settings(config, topology, links, rate, Path(folder))
            changes |= {"serving.drafts.accepted": config.accepted} if "draft" in way else {}
            case = Case().with_(
                {
                    **{"model.name": "deepseek-v3", "gpu.name": config.gpu, "network.alpha_s": us(config.alpha_us)},
                    **{
                        "serving.ep": GPUS,
                        "serving.kernels": "ideal",
                        "serving.tpot_ms": tpot_ms,
                        "serving.by": "predicted",
                    },
                    **changes,
                }
            )
            (row,) = serve(case)
            there = row["fits"] and row["tpot_s"] <= ms(tpot_ms)
            usd = row["usd_per_million_tokens"] if there else None
            yield {
                "topology": f"{topology}, {links}" if topology in SWITCHLESS else topology,
                "gigabytes_per_s": rate if topology in ("scale-up", *SWITCHLESS) else 50.0,
                "way": way,
                "tpot_ms": tpot_ms,
                "batch": row["batch"] if there else None,
                "tokens_per_s_per_gpu": row["tokens_per_s_per_gpu"] if there else None,
                "usd_per_million_tokens": usd,
                "per_dollar": None if usd is None else 1 / usd,
                "bound_by": row["bound_by"],
            }


at = adding(series=lambda row: f"{row['topology']}, {row['gigabytes_per_s']:g} GB/s")
DOWN = ["series", "way"]
table = told(
    "tokens a second of a GPU, the best batch within the time",
    then(at, pivot(DOWN, "{tpot_ms:g} ms", "{tokens_per_s_per_gpu:,.0f}")),
    "million tokens for a dollar",
    then(at, pivot(DOWN, "{tpot_ms:g} ms", "{per_dollar:.2f}")),
)


def _shown(rows: Rows) -> Rows:
    return [row for row in rows if row["per_dollar"] is not None and row["way"] == "overlap"]


build = then(
    _shown,
    lines(
        ("gigabytes_per_s", "GB/s of a GPU"),
        ("per_dollar", "million tokens for a dollar"),
        "{topology}",
        panel="{tpot_ms:g} ms a token",
        title="Tokens per dollar by topology",
    ),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """Tokens a dollar of switchless topologies over scale-up of the same bandwidth."""
    at = ("gigabytes_per_s", "way", "tpot_ms")
    known = [(row["topology"], tuple(row[key] for key in at), row["per_dollar"]) for row in rows if row["per_dollar"]]
    scale_up = {place: value for topology, place, value in known if topology == "scale-up"}
    found = []
    for name in dict.fromkeys(topology for topology, _, _ in known if topology.startswith(SWITCHLESS)):
        over = [value / scale_up[place] for topology, place, value in known if topology == name and place in scale_up]
        if over:
            found.append(against(f"tokens a dollar, {name}, over scale-up (its price assumed)", over, *PUBLISHED))
    return found


QUICK = {"gigabytes_per_s": (450.0,), "tpot_ms": (50.0,), "ways": ("overlap",)}
SCRIPT = Script(Config, quick=QUICK, dtype="float64")
SCRIPT.start(__name__)
