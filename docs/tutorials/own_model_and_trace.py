# %% [markdown]
# # Your own model and trace
#
# How fast does your model train with your routing? Give its dimensions or a released `config.json`
# ([models](../models.md)) and a recording; open degrees are searched.
# %%
from pathlib import Path

import numpy as np

from mfabric_jax import Case, cases, report, resolve, simulate, traffic
from mfabric_jax.apps import recordings

Path("mine.toml").write_text("""
blocks = 16
hidden = 2048
attention = { heads = 16, kv_heads = 4, head_dim = 128 }
experts = 64
top_k = 4
expert_hidden = 1024
vocab = 64000
""")
sizes = {"job.parallel.gpus": 64, "job.parallel.ep": 16, "job.batch.global_batch": 1024}
case = Case().with_({"model.name": "mine.toml", **sizes})
found = resolve(case)
print(f"{found.job.model}: tensor {found.job.tp}, pipeline {found.job.pp}, experts {found.job.ep}")
# %% [markdown]
# ## A recording
#
# A recording counts the tokens that each rank sent to each expert: an array [iteration, layer, micro-batch, source
# rank, expert]. This one is drawn; yours may lack axes, or come from Megatron, SGLang or vLLM
# ([formats](../traffic.md#recordings)).
# %%
rng = np.random.default_rng(0)
popular = rng.dirichlet(np.full(64, 0.5), size=16)  # of every layer
popular = popular * np.exp(0.2 * rng.standard_normal((2, 16, 64)))  # iterations drift
shares = (popular / popular.sum(axis=2, keepdims=True))[:, :, None, None]
tokens = rng.multinomial(16384, np.broadcast_to(shares, (2, 16, 2, 16, 64)))
traffic.save_tokens(traffic.Tokens(tokens, "drawn for a tutorial"), "mine.npz")

(recording,) = traffic.open_trace("mine.npz")
print(recording.axes, tokens.shape)
knobs = recordings.fit(recording).knobs
print(f"generated traffic like it: skew {knobs.skew:.2f}, drift {knobs.drift:.2f}")
# %% [markdown]
# ## What it means for the job
#
# The same case with even experts, as measured in OLMoE (the default), and as recorded:
# %%
fabrics = {"network.fabric": ["fat-tree", "mfabric"]}
rows = []
for name, said in {
    "even": {"traffic": "generated", "traffic.generated.skew": 0.0},
    "measured": {},
    "recorded": {"traffic": "trace", "traffic.trace.path": "mine.npz"},
}.items():
    rows += [row | {"variant": name} for row in simulate(cases(case.with_(said), fabrics)).rows()]
columns = ["fabric", "variant", "iteration_s", "ep_share", "rank_load_over_mean"]
print(report.plain(rows, columns))
# %% [markdown]
# `ep_share` is the fraction of an iteration in which all-to-alls hold computation up, `rank_load_over_mean` what the
# busiest rank receives over the mean. In one command:
#
# ```sh
# mfabric traces study mine.npz --model mine.toml --gpus 64 --ep 16 --out study.html
# ```
#
# A region of few servers gets the same circuits from every policy: two servers always, four with the usual six circuits
# (`network.mfabric.optical_degree`). To compare policies take a larger `job.parallel.ep` or a smaller degree.
