"""The sketch of each algorithm's idea for its page. An SVG has the same text each time it is drawn."""

from matplotlib.figure import Figure

from shared.runs.curves import svg
from sketching import discrete, distances, ensembles, evaluation, goals, models, offline, online, phases

# Keyed by the name of the page
SKETCHES = {
    drawing.__name__: drawing
    for drawing in (
        offline.any_percent_bc,
        offline.awac,
        offline.awr,
        ensembles.cql,
        discrete.discrete_bc,
        discrete.discrete_bcq,
        discrete.discrete_cql,
        discrete.discrete_iql,
        discrete.discrete_sac,
        offline.diffusion_ql,
        offline.dt,
        ensembles.edac,
        evaluation.evaluation_fqe,
        phases.finetune_acfql,
        phases.finetune_awac,
        phases.finetune_balanced_replay,
        phases.finetune_cal_ql,
        phases.finetune_cql,
        phases.finetune_fql,
        phases.finetune_ifql,
        phases.finetune_iql,
        phases.finetune_rebrac,
        phases.finetune_rlpd,
        phases.finetune_spot,
        offline.acfql,
        offline.fql,
        goals.goal_conditioned_crl,
        goals.goal_conditioned_gcbc,
        goals.goal_conditioned_gciql,
        goals.goal_conditioned_gcivl,
        distances.goal_conditioned_hiql,
        distances.goal_conditioned_qrl,
        offline.ifql,
        offline.iql,
        ensembles.lb_sac,
        models.model_based_combo,
        models.model_based_dynamics,
        models.model_based_mobile,
        models.model_based_mopo,
        online.online_ddpg,
        online.online_dqn,
        online.online_td3,
        offline.plas,
        offline.prdc,
        offline.bcq,
        offline.bear,
        offline.crr,
        offline.rebrac,
        ensembles.sac,
        ensembles.sac_n,
        offline.td3_bc,
        ensembles.uwac,
        offline.xql,
    )
}


def drawn(name: str) -> str:
    """Draws a sketch as SVG, with the same text each time."""
    figure = Figure(layout="constrained")
    SKETCHES[name](figure)
    return svg(figure, name)
