# %% [markdown]
# # Write and train a policy
#
# A policy chooses circuits for the bytes [S S] between servers: a function that JAX can trace
# ([rules](../extending.md#a-policy-of-your-own)). This one squares demand, so that heavy pairs count more; `greedy`
# deals the circuits. Training gains about 1 % so far.
# %%
from pathlib import Path

Path("mine.py").write_text('''
from mfabric_jax.policies import greedy


def squared(demand, region, *, previous=None, key=None):
    """Heavy pairs count more."""
    return greedy(demand**2, region, rule="next")
''')
# %% [markdown]
# ## How good is it?
#
# No circuits and no routing beat the *degree bound*: the busiest server sends its bytes over all of its NICs.
# %%
import jax

from mfabric_jax import Case, Region, all_to_all_time, cases, policies, report, simulate, traffic
from mfabric_jax.apps import learning
from mfabric_jax.routing import degree_bound

region = Region(servers=8, nic_gbps=400.0)  # 6 NICs on the optical switch, 2 on packet switches
draw = traffic.sampler("zipf", "test")
demands = jax.vmap(lambda key: draw(key, 8))(jax.random.split(jax.random.key(0), 32))


def over_bound(policy):
    def one(demand):
        return all_to_all_time(region, policy(demand, region), demand) / degree_bound(region, demand)

    return float(jax.jit(jax.vmap(one))(demands).mean())


for name in ("uniform", "greedy", "mine.py:squared"):
    policy = policies.get(name)
    policies.check_legal(name, policy(demands[0], region).circuits.count, region.optical_degree)
    print(f"{name:16} {over_bound(policy):.3f} times the degree bound")
# %% [markdown]
# With the paper's routing a pair with circuits uses only these, so a single circuit for a heavy pair delays everything
# ([other routings](../concepts.md#who-talks-to-whom)).
#
# ## Train one
#
# An *index* is a rule of five numbers, found by trials; a *network* follows gradients, which made whole circuits slower
# ([what learning is worth](../policies.md#what-learning-is-worth)). A killed run goes on from its last checkpoint. This
# run is as small as possible ([learning](../policies.md#learning)):
# %%
small = {"steps": 1, "batch": 2, "sizes": (4,), "routing": "unsplit", "log_every": 1, "checkpoint_every": 1}
learning.train(learning.TrainingSettings(kind="index", **small), "run")
print("kept:", sorted(path.name for path in Path("run").glob("*.policy")))
print(f"trained index    {over_bound(policies.get('run/trained.policy')):.3f} times the degree bound")
# %% [markdown]
# ## In a whole training iteration
#
# By name or file, also as `--policy` on the command line:
# %%
case = Case().with_({"model.name": "mixtral-8x22b", "model.recipe": "paper", "network.fabric": "mfabric"})
case = case.with_(
    {"job.parallel.gpus": 512, "traffic": "generated", "traffic.generated.skew": 0.5, "run.iterations": 1}
)
rows = simulate(cases(case, {"circuits.policy": ["greedy", "mine.py:squared", "run/trained.policy"]})).rows()
print(report.plain(rows, ["policy", "iteration_s", "ep_comm_s", "reconfig_s"]))
# %% [markdown]
# Next: [policies](../policies.md), [circuit schedules](../circuit_schedules.md).
