"""MinAtar's games under their own names, such as `MinAtar/SpaceInvaders-v1`: small images, fast to step.

The package is an extra, because its licence is the GPL: `pip install 'corl-twins[minatar]'`.

Young and Tian, MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning Experiments,
2019, https://arxiv.org/abs/1903.03176
"""

import importlib
import logging
from typing import Any

import gymnasium
import numpy as np

from shared.errors import InputError

PREFIX = "MinAtar/"
"""The prefix of the games' names."""

_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
# The games have no time limit of their own.
_MAX_EPISODE_STEPS = 1000
# Side of a cell in films, in pixels
_CELL = 24


class _Game(gymnasium.Wrapper):
    """A game whose episodes only depend on their seeds, and which can be rendered."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Starts an episode without the previous episode's last action, which a sticky first action would repeat."""
        unwrapped: Any = self.env.unwrapped
        unwrapped.game.last_action = 0
        return self.env.reset(**options)

    def render(self) -> Any:
        """The package's picture in colours (H, W, 3), as bytes, with enlarged cells."""
        picture: Any = self.env.render()
        return (255 * picture).astype(np.uint8).repeat(_CELL, 0).repeat(_CELL, 1)


def _make(game: str, minimal: bool, render_mode: str | None = None) -> gymnasium.Env:
    """Creates a game, with all six actions or with the minimal set.

    Raises:
        InputError: The package is not installed.
    """
    try:
        # It warns of packages that only its own windows need.
        logging.disable(logging.WARNING)
        package = importlib.import_module("minatar.gym")
    except ImportError as error:
        raise InputError(f"MinAtar's {game!r} needs its package: pip install 'corl-twins[minatar]'") from error
    finally:
        logging.disable(logging.NOTSET)
    return _Game(package.BaseEnv(game, render_mode=render_mode, use_minimal_action_set=minimal))


def register() -> None:
    """Registers the games with Gymnasium: version 0 with all actions, version 1 with those that have an effect."""
    for game in _GAMES:
        for version in (0, 1):
            gymnasium.register(
                f"{PREFIX}{game.title().replace('_', '')}-v{version}",
                entry_point=f"{__name__}:_make",
                kwargs={"game": game, "minimal": bool(version)},
                max_episode_steps=_MAX_EPISODE_STEPS,
            )
