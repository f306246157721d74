"""Changes to our twin that give somebody's numbers, described in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from port_checker.explaining.edits import RULES, Case, Family, Found, search
from port_checker.explaining.families.numbers import constants
from port_checker.explaining.operations import Operation, Program

# The numeric settings, by kind of case
Settings = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Change:
    """A change to our twin's source.

    Attributes:
        what: The mistake in a few words.
        place: The file and line, such as `corl_jax/td3_bc.py:181`.
        old: The current source.
        new: The source that would give these numbers; empty if the change cannot be written in place.
    """

    what: str
    place: str
    old: str
    new: str


def changes(cases: Sequence[Case], rung: str, families: Sequence[Family], configs: Settings,
            seconds: float) -> list[Change]:  # fmt: skip
    """Finds the changes of one expression that give all the numbers, from the simplest family that has any.

    Args:
        cases: The numbers; the first should be ones that our twin does not give.
        rung: Operations inside networks are changed if this is "forward", or if the program uses dropout.
        families: Kinds of changes.
        configs: The settings for each kind of case.
        seconds: The time limit.
    """
    program = cases[0].program
    within = rung == "forward" or any("dropout" in name for name in program.inputs)
    # Networks contain few constants, but hundreds of other operations.
    families = sorted(families, key=lambda family: family is not constants) if within else families
    told = (told_change(found, cases, configs) for found in search(cases, families, within, seconds))
    return list(dict.fromkeys(change for change in told if change is not None))


def told_change(found: Found, cases: Sequence[Case], configs: Settings) -> Change | None:
    """Describes a change; None if its free number follows no rule."""
    edit, program = found.edit, cases[0].program
    source, number = program.source, ""
    if edit.neutral is not None:
        before = {case.kind: edit.before(case.program) for case in cases if edit.occurs(case.program)}
        number = named(found.numbers, before, configs)
        if not number:
            return None
    changed = [program.operations[program.by_key[key]] for key in edit.at]
    # If a helper's caller is named, no other place is.
    spans = [op.span for op in changed] if changed and edit.span == changed[0].span else []
    lines = list(dict.fromkeys(span[0] for span in [edit.span, *spans] if source.text(span) or span == edit.span))
    where = source.place(edit.span) + "".join(f", {line}" for line in lines if line != edit.span[0])
    what, new = (text.replace("{}", number) for text in (edit.what, edit.new))
    if changed and (caller := _caller(program, changed, edit.span)):
        what, where = f"{what} in `{source.text(edit.span)}`", source.place(caller)
        return Change(what, where, source.text(caller), "")
    return Change(what, where, source.text(edit.span), new)


def _caller(program: Program, changed: Sequence[Operation], span: tuple) -> tuple | None:
    """If a function is called in several places and one of those calls is changed, returns that call's place."""
    ways = {operation.calls for operation in changed}
    if len(ways) != 1 or span not in changed[0].calls:
        return None
    (calls,) = ways
    keys = {operation.key for operation in changed}
    for place in calls[calls.index(span) :]:
        alike = [op for op in program.operations if place in op.calls and op.name == changed[0].name]
        if all(op.key in keys or op.calls == calls for op in alike):
            return None if place == span else place
    return None


# ---- numbers in words ----------------------------------------------------------------------------------------------


def close(found: float, expected: float) -> bool:
    """Whether two numbers are equal up to rounding, including the rounding in the secant method's last step."""
    return abs(found - expected) <= 1e-6 * max(abs(expected), 1e-12) if expected else abs(found) < 1e-9


def named(numbers: Mapping[str, float], before: Mapping[str, float], configs: Settings) -> str:
    """Describes a number found under several settings: its value, or the rule that derives it from the settings.

    Args:
        numbers: The number for each set of settings.
        before: The number in our twin.
        configs: The settings.
    """
    values = list(numbers.values())
    if not values or all(close(value, before[where]) for where, value in numbers.items()):
        return ""
    if all(close(value, values[0]) for value in values):
        return _by_itself(values[0], next(iter(before.values())), configs)
    for name, settings in _settings(configs).items():
        for rule, function in RULES.items():
            if all(_follows(value, function, settings[where]) for where, value in numbers.items()):
                return rule.format(name)
    for rule, function in RULES.items():
        if all(_follows(value, function, before[where]) for where, value in numbers.items()):
            return rule.format("it")
    return ""


def _by_itself(value: float, before: float, configs: Settings) -> str:
    """Describes a number that is the same under all settings, and the setting that it may come from."""
    for name, settings in _settings(configs).items():
        (setting,) = set(settings.values()) if len(set(settings.values())) == 1 else [math.nan]
        for rule, function in list(RULES.items())[1:5]:
            if close(before, setting) and _follows(value, function, setting) and setting not in (0.0, 1.0, 2.0):
                return f"{shown(value)} ({rule.format(name)})"
    return shown(value)


def _follows(value: float, function: Callable[[float], float], setting: float) -> bool:
    try:
        return close(value, function(setting))
    except (ValueError, ZeroDivisionError, OverflowError):
        return False


def _settings(configs: Settings) -> dict[str, dict[str, float]]:
    """The numeric settings, by name and by set of settings."""
    names = next(iter(configs.values()))
    found = {name: {where: values[name] for where, values in configs.items() if name in values} for name in names}
    whole = {name: values for name, values in found.items() if len(values) == len(configs)}
    return {name: values for name, values in whole.items() if all(map(math.isfinite, values.values()))}


def shown(number: float) -> str:
    """Formats a number as briefly as possible."""
    if abs(number) < 1e-12:
        return "0"
    for below in range(1, 13):
        above = round(number * below)
        if above and abs(above) < 10_000 and close(number, above / below):
            return (
                f"{above}" if below == 1 else f"{above / below:g}" if below in (2, 4, 5, 8, 10) else f"{above}/{below}"
            )
    return f"{number:.6g}"
