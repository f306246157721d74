"""A critic that learns at every update and a policy that learns at every `freq`th one, one number each, in PyTorch."""

from collections.abc import Iterable


def train(critic: float, policy: float, batches: Iterable[float], start: int, freq: int) -> tuple[float, float]:
    """Both after the updates `start + 1`, `start + 2`, ..., one for each batch."""
    for number, batch in enumerate(batches, start=start + 1):
        critic = critic - 0.1 * (critic - batch)
        if number % freq == 0:
            policy = policy - 0.1 * (policy - critic)
    return critic, policy
