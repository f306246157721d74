"""Mistakes that a tired person might make: changes of one expression, in families, simple ones first."""

from collections.abc import Sequence

from port_checker.explaining.edits import Family
from port_checker.explaining.families.inputs import inputs_changed, inputs_exchanged, inputs_scaled
from port_checker.explaining.families.networks import other_networks, two_networks
from port_checker.explaining.families.numbers import bounds, constants, scaled
from port_checker.explaining.families.operations import (
    call_left_out,
    left_out,
    other_mean,
    other_operation,
    transformed,
)
from port_checker.explaining.families.orders import crossed, exchanged, not_reduced, reduced_first
from port_checker.explaining.families.reads import mixed, read_elsewhere, reduced_elsewhere

# Changes to something that is there
SIMPLE: Sequence[Family] = (
    left_out,
    call_left_out,
    inputs_exchanged,
    other_operation,
    other_mean,
    constants,
    bounds,
    other_networks,
    reduced_first,
    exchanged,
    not_reduced,
    crossed,
    inputs_changed,
    read_elsewhere,
)
# Additions to what is there
FURTHER: Sequence[Family] = (inputs_scaled, reduced_elsewhere, two_networks, transformed, scaled, mixed)
