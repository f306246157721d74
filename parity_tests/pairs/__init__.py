"""What the ladder must know of each pair: one short module an algorithm."""

from parity_tests.pairs import any_percent_bc, awac, cql, dt, edac, iql, lb_sac, rebrac, sac, sac_n, td3_bc

MODULES = (any_percent_bc, td3_bc, rebrac, awac, cql, iql, sac_n, edac, lb_sac, dt, sac)
PAIRS = {module.PAIR.name: module.PAIR for module in MODULES}
MISTAKES = {module.PAIR.name: module.MISTAKES for module in MODULES}
