"""Columns of the rows on recorded routing."""

from mfabric_jax.evaluate.rows.rows import CASES
from mfabric_jax.support.columns import TEXT, Column, Columns

STATISTICS = Columns(
    Column("recording", TEXT, "File of the recording."),
    Column("iteration", "", "Iteration of the record."),
    Column("layer", "", "Layer of the record."),
    Column("selections", "", "Selections of experts."),
    Column("expert_max_over_mean", "", "Selections of the busiest expert over the mean."),
    Column("rank_max_over_mean", "", "Selections of the busiest rank over the mean."),
    Column("top10_pairs_share", "", "Part of the bytes in the busiest 10 % of rank pairs."),
    Column("top20_pairs_share", "", "Part of the bytes in the busiest 20 % of rank pairs.", detail=True),
    Column("pairs_gini", "", "Gini coefficient of the bytes of rank pairs."),
    Column("zero_pairs", "", "Part of the rank pairs without bytes.", detail=True),
    Column("own_rank_share", "", "Part of the selections that stay on their rank."),
    Column("server_share", "", "Part of the selections that stay on their server."),
    Column("source_variation", "", "Variation of destinations between source ranks.", detail=True),
    Column("source_variation_by_chance", "", "The same if sources differed by chance alone.", detail=True),
)
DESIGNS = Columns(
    Column("design", TEXT, "Fabric, policy and routing in short."),
    CASES,
    Column("over_tree", "", "Iteration time over the time on the best fat-tree."),
)
PREDICTORS = Columns(
    Column("predictor", TEXT, "Name of the predictor."),
    Column("records", "", "Records that it looks ahead."),
    Column("iterations", "", "Iterations that it looks ahead."),
    Column("error", "", "Part of the selections that it predicts for a wrong target."),
    Column("over_even", "", "Its error over that of an even prediction."),
)
