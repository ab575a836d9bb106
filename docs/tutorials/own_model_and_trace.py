# %% [markdown]
# # Your own model and trace
#
# A model is a file of its dimensions, or the `config.json` of a released one ([models](../models.md)).
# Degrees that you leave open are searched: what fits the memory and takes the least time.
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
print(found.why["job.parallel.tp"])
# %% [markdown]
# ## A recording
#
# You counted how many tokens each rank sent to each expert: an array [iteration, layer, micro-batch, source
# rank, expert]. Here it is drawn: a few experts are popular, others in every layer, and drift. Yours may lack
# axes, or come from Megatron, SGLang, vLLM ([formats](../traffic.md#recordings)).
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
# The same case with experts chosen evenly, as measured in OLMoE (the default), and as recorded:
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
# `ep_share` is the part of an iteration in which all-to-alls hold computation up, `rank_load_over_mean` how
# much more than the mean the busiest rank receives. What a recording means for a job, with predictors and a
# page, is also one command:
#
# ```sh
# mfabric traces study mine.npz --model mine.toml --gpus 64 --ep 16 --out study.html
# ```
#
# Look first whether there is anything to choose. Few servers with many circuits (`network.mfabric.optical_degree`) get
# the same ones from every policy: a region of two servers always, four servers with the usual six circuits two for each
# pair. `compare --policy greedy,uniform` says so: "policy has no effect on iteration_s: greedy, uniform give equal
# times where other settings are equal." A recording cannot tell policies apart there: take a larger `job.parallel.ep`,
# or a smaller degree.
