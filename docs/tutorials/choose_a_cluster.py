# %% [markdown]
# # Choose a cluster
#
# You are to buy 256 GPUs that train Qwen-MoE, and want to know which network to put between them. Everything
# that decides one answer is a *case*; what you do not say has a default ([every
# setting](../case.md#every-setting)).
# %%
from mfabric_jax import Case, cases, report, resolve, simulate

case = Case().with_({"model.name": "qwen-moe", "job.parallel.gpus": 256, "job.parallel.ep": 32})
job = resolve(case).job
print(f"{job.gpus} GPUs: data {job.dp} x tensor {job.tp} x pipeline {job.pp} x experts {job.ep}")
print(f"experts of a group live on {job.servers_per_region} servers")
# %% [markdown]
# ## Fabrics side by side
#
# Lists of values make several cases. `simulate` checks all of them before anything is computed; `rows`
# computes a dictionary for each, whose columns [formats.md](../formats.md#rows) lists.
# %%
axes = {"network.fabric": ["fat-tree", "rail-only", "torus", "mfabric"], "network.nic_gbps": [100, 400]}
rows = simulate(cases(case, axes)).rows()
print(report.comparison(rows))
# %% [markdown]
# The first table ranks designs by the dollars of a million tokens, the second says where the time of an
# iteration goes, the third what the cluster costs. `reconf` is waiting for the optical switch: nothing here,
# since its circuits never turn.
#
# ## Time against price
# %%
from pathlib import Path

made = report.save_all(rows, "pictures")
print(len(made), "pictures:", ", ".join(sorted(Path(path).name for path in made)))
# %% [markdown]
# ![Iteration time against the price of the whole cluster](pictures/pareto.png)
#
# Designs on the grey staircase are those that no other beats in both time and price.
#
# ## How sure is it?
#
# Every time has a band: 8 of 10 measured training steps lie within such a band of their prediction
# ([accuracy](../accuracy.md#how-sure-a-time-is)). Most of that error is the same in all designs, so what tells
# two designs apart is known better: the column "over best" has its band.
# %%
for row in rows:
    if row["nic_gbps"] == 400:
        print(f"{row['fabric']:10} {row['iteration_s']:.2f} s ({row['low_s']:.2f} to {row['high_s']:.2f})")
# %% [markdown]
# ## Days and dollars
#
# With the tokens of a training (`--tokens 2e12` from the shell), rows say how long all of it takes, and what it
# costs ([cost](../cost.md#a-whole-training)).
# %%
training = case.with_({"job.training_tokens": 2e12, "network.nic_gbps": 400})
for row in simulate(cases(training, {"network.fabric": ["fat-tree", "mfabric"]})).rows():
    days = f"{row['training_days']:.1f} days ({row['training_low_days']:.1f} to {row['training_high_days']:.1f})"
    print(f"{row['fabric']:10} {days}, {row['training_usd']:,.0f} $, {row['training_kwh'] / 1000:.0f} MWh")
# %% [markdown]
# ## What if?
#
# Each question is one more setting, or a [table of prices](../cost.md#your-own). A tree with three ports down
# for one up:
# %%
tree = case.with_({"network.fabric": "fat-tree", "network.nic_gbps": 400})
for row in simulate(cases(tree, {"network.oversubscription": [1, 3]})).rows():
    print(f"{row['network_cost_usd'] / 1e6:.2f} M$ of network: {row['iteration_s']:.2f} s")
# %% [markdown]
# The same from the shell, with a page for those who decide:
#
# ```sh
# mfabric compare --model qwen-moe --gpus 256 --ep 32 --fabric fat-tree,rail-only,torus,mfabric \
#     --nic-gbps 100,400 --out rows.csv
# mfabric report rows.csv --out report.html
# ```
#
# Next: [sweeps](../sweeps.md) for whole design spaces, [fabrics](../fabrics.md) for what each of them
# assumes.
