"""The list of algorithms."""

from dataclasses import dataclass

from corl_twins.place import enter


@dataclass(frozen=True)
class Algorithm:
    """An algorithm, which you can train in PyTorch and in JAX.

    Attributes:
        name: Its name for `train`, such as `iql` or `finetune/cal_ql`.
        title: Its name in papers and tables.
        family: Its kind, such as `Policy constraint`.
        use: When to choose it, in a sentence.
        paper: Authors and year.
        url: The paper's address.
    """

    name: str
    title: str
    family: str
    use: str
    paper: str
    url: str


def algorithms() -> list[Algorithm]:
    """All algorithms, family by family; the first call takes a few seconds, because it loads both frameworks."""
    enter()
    from parity_tests.families import Family
    from parity_tests.pairs import PAIRS

    order = list(Family)
    pairs = sorted(PAIRS.values(), key=lambda pair: (order.index(pair.family), pair.name))
    return [Algorithm(pair.name, pair.title, pair.family.title, pair.use, pair.paper, pair.url) for pair in pairs]
