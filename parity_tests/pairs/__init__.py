"""What the ladder must know of each pair: one short module an algorithm."""

from parity_tests.pairs import cql, td3_bc

PAIRS = {module.PAIR.name: module.PAIR for module in (td3_bc, cql)}
MISTAKES = {module.PAIR.name: module.MISTAKES for module in (td3_bc, cql)}
