# %% [markdown]
# # Write and train a policy
#
# A policy says which servers of a region are joined by optical circuits: a function of the bytes [S S]
# between servers that JAX can trace ([the rules](../extending.md#a-policy-of-your-own)). This one looks at
# squares, so that heavy pairs count more; `greedy` deals the circuits.
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
# No circuits and no routing end an all-to-all before the busiest server has sent its bytes over all of its
# NICs: the *degree bound*. One compiled call judges 32 demands:
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
# The routing is the paper's: a pair with circuits uses them alone, so that one circuit for a heavy pair holds
# everything up, and plain greedy is no better here than circuits spread evenly
# ([other routings](../concepts.md#who-talks-to-whom)).
#
# ## Train one
#
# Training gains little so far: trials of whole circuits lowered held-out times by 1 % at most, and gradients, which
# lower the time of real-valued circuits, made whole ones slower where there was something to learn
# ([what learning is worth](../policies.md#what-learning-is-worth)). Judge what comes out before you use it.
#
# An *index* is a rule of five numbers, found by trials; a *network* follows gradients and takes minutes.
# Demand comes from families with fixed splits: a policy is trained on one and judged on another
# ([learning](../policies.md#learning)). This run is as small as it can be; a killed run goes on from its last
# checkpoint.
# %%
small = {"steps": 1, "batch": 2, "sizes": (4,), "routing": "unsplit", "log_every": 1, "checkpoint_every": 1}
learning.train(learning.TrainingSettings(kind="index", **small), "run")
print("kept:", sorted(path.name for path in Path("run").glob("*.policy")))
print(f"trained index    {over_bound(policies.get('run/trained.policy')):.3f} times the degree bound")
# %% [markdown]
# ## In a whole training iteration
#
# A policy is used by name or by file wherever one is asked for, also as `--policy` on the command line:
# %%
case = Case().with_({"model.name": "mixtral-8x22b", "model.recipe": "paper", "network.fabric": "mfabric"})
case = case.with_(
    {"job.parallel.gpus": 512, "traffic": "generated", "traffic.generated.skew": 0.5, "run.iterations": 1}
)
rows = simulate(cases(case, {"circuits.policy": ["greedy", "mine.py:squared", "run/trained.policy"]})).rows()
print(report.plain(rows, ["policy", "iteration_s", "ep_comm_s", "reconfig_s"]))
# %% [markdown]
# Next: [every policy and how good it is](../policies.md), [forecasts that
# err](../policies.md#forecasts-that-err), [schedules that turn inside an
# all-to-all](../circuit_schedules.md).
