# %% [markdown]
# # Choose a cluster
#
# Which network should join 256 GPUs that train Qwen-MoE? mFabric at 400 Gbps trains the most tokens per dollar. Each
# answer is of a *case*, whose [settings](../case.md#every-setting) have defaults.
# %%
from mfabric_jax import Case, cases, report, resolve, simulate

case = Case().with_({"model.name": "qwen-moe", "job.parallel.gpus": 256, "job.parallel.ep": 32})
job = resolve(case).job
print(f"{job.gpus} GPUs: data {job.dp} x tensor {job.tp} x pipeline {job.pp} x experts {job.ep}")
# %% [markdown]
# ## Fabrics side by side
#
# Lists of values make several cases. `rows` computes a dictionary for each
# ([columns](../formats.md#columns-of-cases)).
# %%
axes = {"network.fabric": ["fat-tree", "rail-only", "mfabric"], "network.nic_gbps": [100, 400]}
rows = simulate(cases(case, axes)).rows()
print(report.comparison(rows))
# %% [markdown]
# "over best" is more certain than a time with its band, since designs share most errors
# ([accuracy](../accuracy.md#how-sure-a-time-is)).
#
# ## Time against price
# %%
made = report.save_all(rows, "pictures")
print(len(made), "pictures")
# %% [markdown]
# ![Iteration time against network cost](pictures/pareto.png)
#
# No design is both cheaper and faster than those on the grey staircase.
#
# ## Days and dollars
#
# Training on 2e12 tokens ([cost](../cost.md#a-whole-training)):
# %%
training = case.with_({"job.training_tokens": 2e12, "network.nic_gbps": 400})
for row in simulate(cases(training, {"network.fabric": ["fat-tree", "mfabric"]})).rows():
    days = f"{row['training_days']:.1f} days ({row['training_low_days']:.1f} to {row['training_high_days']:.1f})"
    print(f"{row['fabric']:10} {days}, {row['training_usd']:,.0f} $, {row['training_kwh'] / 1000:.0f} MWh")
# %% [markdown]
# ## What if?
#
# Each question is one more setting, here a tree with three ports down for each port up:
# %%
tree = case.with_({"network.fabric": "fat-tree", "network.nic_gbps": 400})
for row in simulate(cases(tree, {"network.oversubscription": [1, 3]})).rows():
    print(f"{row['network_cost_usd'] / 1e6:.2f} M$ of network: {row['iteration_s']:.2f} s")
# %% [markdown]
# The same from the shell:
#
# ```sh
# mfabric compare --model qwen-moe --gpus 256 --ep 32 --fabric fat-tree,rail-only,mfabric \
#     --nic-gbps 100,400 --out rows.csv
# mfabric report rows.csv --out report.html
# ```
#
# Next: [sweeps](../sweeps.md), [your own prices](../cost.md#your-own).
