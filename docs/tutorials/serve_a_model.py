# %% [markdown]
# # Serve a model
#
# In serving every step of decoding sends each token to its experts and back, layer after layer, within tens
# of milliseconds. This asks what a fabric does to the time from token to token, and to the price of a million
# tokens ([what is modelled](../serving.md)).
# %%
from mfabric_jax import Case, cases, report
from mfabric_jax.apps.serving import deployment, serve

case = Case().with_({"model.name": "deepseek-v3", "gpu.name": "H200-SXM", "serving.ep": 64, "serving.batch": 64})
case = case.with_({"circuits.policy": "uniform", "circuits.routing": "split"})  # of mfabric: demand is even
axes = {"network.fabric": ["fat-tree", "full-mesh", "mfabric", "nvl72"]}
rows = list(serve(cases(case, axes)))
columns = ["fabric", "batch", "tpot_s", "tokens_per_s_per_gpu", "usd_per_million_tokens", "bound_by"]
print(report.plain(rows, columns))
# %% [markdown]
# `tpot_s` is the time from token to token, `bound_by` what holds a layer. No public price of nvl72 is known.
#
# ## A target instead of a batch
#
# With `serving.tpot_ms` every row has the batch that gives the most tokens a second within that time, at the slow end
# of the band (measured steps took 1.06 to 1.35 times their prediction). It runs in two micro-batches that overlap or in
# one, which halves what a step reads of the experts:
# %%
rows = []
for target in (25, 50, 100):
    aimed = case.with_({"serving.tpot_ms": target})
    rows += [row | {"target_ms": target} for row in serve(cases(aimed, axes))]
print(report.plain(rows, ["target_ms", "fabric", "overlap", "batch", "tokens_per_s_per_gpu", "usd_per_million_tokens"]))
# %% [markdown]
# ## The whole curve, as arithmetic
#
# A deployment is worked out once. A step is then a formula of batch, context and bandwidth: numbers or
# arrays, in NumPy or JAX, so that a curve is one call and `jax.grad` says what more bandwidth would bring.
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
# (2 x batch, since two micro-batches take turns.) All four lines are the same: attention takes longer than
# communication, which two micro-batches hide. The kink is at 128 tokens, where products begin another row of tiles.
# The same from the shell:
#
# ```sh
# mfabric serve --gpu H200-SXM --ep 64 --tpot-ms 50 --fabrics fat-tree,full-mesh,mfabric,nvl72 \
#     --out rows.csv --figures pictures
# ```
