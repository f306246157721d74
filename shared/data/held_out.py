"""Splits whole episodes off a dataset, to measure on them what was learnt from the others."""

import numpy as np

from shared.data.transitions import ended_by_time, episode_ends

Raw = dict[str, np.ndarray]


def hold_out(raw: Raw, max_episode_steps: int | None, share: float) -> tuple[Raw, Raw] | None:
    """Splits a dataset's rows into training rows and the rows of held-out episodes.

    The held-out episodes are spread evenly over the file, because later episodes often come from better policies. They
    are the same for every seed and algorithm. Rows after the last complete episode are training rows.

    Args:
        raw: The arrays of a dataset, N rows.
        max_episode_steps: Time limit in steps; used only if there are no `timeouts`.
        share: Share of the complete episodes to hold out, between 0 and 1; at least one episode is.

    Returns:
        Both parts, with `timeouts` and the numbers of their `rows` in the dataset. None if fewer than two episodes are
        complete, because then none can be held out.

    Raises:
        InputError: There are neither timeouts nor a time limit.
    """
    ends = episode_ends(raw, max_episode_steps)
    if len(ends) < 2:
        return None
    number = min(max(1, round(share * len(ends))), len(ends) - 1)
    chosen = ((np.arange(number) + 0.5) * len(ends) / number).astype(int)
    rows = len(raw["terminals"])
    held_out = np.isin(np.searchsorted(ends, np.arange(rows)), chosen)
    # Counting time limits depends on all earlier episodes, so it must happen before the split.
    raw = {**raw, "timeouts": ended_by_time(raw, max_episode_steps), "rows": np.arange(rows)}
    return _rows(raw, ~held_out), _rows(raw, held_out)


def _rows(raw: Raw, chosen: np.ndarray) -> Raw:
    return {name: column[chosen] for name, column in raw.items()}
