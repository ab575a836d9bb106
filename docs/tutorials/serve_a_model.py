# %% [markdown]
# # Serve a model
#
# What does the fabric change when DeepSeek-V3 serves on 64 H200? On most fabrics the price, not the speed, which
# attention limits ([what is modelled](../serving.md)).
# %%
from mfabric_jax import Case, cases, report
from mfabric_jax.apps.serving import deployment, serve

case = Case().with_({"model.name": "deepseek-v3", "gpu.name": "H200-SXM", "serving.ep": 64, "serving.batch": 64})
case = case.with_({"circuits.policy": "uniform", "circuits.routing": "split"})  # of mfabric: demand is even
axes = {"network.fabric": ["fat-tree", "full-mesh", "mfabric", "nvl72"]}
rows = list(serve(cases(case, axes)))
columns = ["fabric", "batch", "tpot_s", "tokens_per_s_per_gpu", "usd_per_million_tokens"]
print(report.plain(rows, columns))
# %% [markdown]
# `tpot_s` is the time from token to token. nvl72 has no public price.
#
# ## A target instead of a batch
#
# With `serving.tpot_ms` each row has the batch with the most tokens per second in time, at the slow end of the band, in
# two micro-batches that overlap or in one:
# %%
rows = []
for target in (25, 50):
    aimed = case.with_({"serving.tpot_ms": target})
    rows += [row | {"target_ms": target} for row in serve(cases(aimed, axes))]
print(report.plain(rows, ["target_ms", "fabric", "batch", "tokens_per_s_per_gpu", "usd_per_million_tokens"]))
# %% [markdown]
# ## The whole curve, as arithmetic
#
# A step of a deployment is a formula of batch, context and bandwidth, for NumPy or JAX arrays and `jax.grad`:
# %%
import numpy as np
from matplotlib.figure import Figure

batch = np.arange(4.0, 257.0, 4.0)
figure = Figure(figsize=(6, 4))
axis = figure.subplots()
for fabric in axes["network.fabric"]:
    deployed = deployment(case.with_({"network.fabric": fabric}))
    step = deployed.decoding(deployed.numbers._replace(batch=batch))
    axis.plot(1 / step.tpot_s, 2 * batch / step.tpot_s, label=fabric)
    print(
        f"{fabric:10} fastest token {1000 * step.tpot_s.min():.1f} ms, most {max(2 * batch / step.tpot_s):.0f} tokens/s"
    )
axis.set_xlabel("tokens a second of one request")
axis.set_ylabel("tokens a second of a GPU")
axis.legend()
figure.savefig("speed.png", dpi=110, bbox_inches="tight")
# %% [markdown]
# ![Throughput of a GPU against speed of a request, four fabrics](speed.png)
#
# All four lines are the same: attention takes longer than communication, which two micro-batches hide. At 128 tokens
# products begin another row of tiles. From the shell:
#
# ```sh
# mfabric serve --gpu H200-SXM --ep 64 --tpot-ms 50 --fabrics fat-tree,full-mesh,mfabric,nvl72 \
#     --out rows.csv --figures pictures
# ```
