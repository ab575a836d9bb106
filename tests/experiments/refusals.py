"""What a person may mistype in an experiment, found before anything runs."""

import importlib


def made(name, **fields):
    return lambda: importlib.import_module(f"experiments.{name}").Config(**fields)


REFUSED = [
    (made("pareto", fabrics=("fat-tre",)), "fabrics 'fat-tre' is unknown (did you mean 'fat-tree'?)"),
    (made("batch_size", models=("mixtral-8x7",)), "model.name 'mixtral-8x7' is unknown (did you mean 'mixtral-8x7b'?)"),
    (made("scale_up_domains", gpu_tbps=(8.0, 8.0)), "gpu_tbps must name at least one and repeat none"),
    (made("scale_up_domains", efficiency=(0.5, 0.0)), "efficiency must be finite and above 0, got [0.5, 0.0]."),
    (made("cost_by_cluster_size", servers=(0,)), "servers must be a whole number of at least 1, got 0."),
    (made("cost_by_cluster_size", tiers=(4,)), "tiers must be 1, 2 or 3, got 4."),
    (made("cost_by_cluster_size", nic_gbps=(50.0,)), "nic_gbps 50 has no price"),
    (made("many_demands", families=("smartmoe",)), "families 'smartmoe' needs trace, and nothing else is left."),
    (made("many_demands", servers=(5,)), "servers must divide the 16 ranks of 'olmoe', got 5."),
    (made("predictor_on_traces", servers=(3,)), "servers must divide the 16 ranks of the recording, got 3."),
    (made("scale_to_32768", models=("llama-moe",), gpus=(1000,)), "gpus must be whole replicas of llama-moe"),
    (made("scale_to_32768", fabrics=("mfabric",)), "fabrics must name the fat-tree"),
    (made("optical_degree", optical=(4,)), "optical and electrical must hold the default, 6 and 2, got [4] and"),
    (made("training_today", changes=("NDP",)), 'changes must begin with "the paper\'s set-up"'),
    (made("several_jobs", load=1.1), "load must be at most 1"),
]
