"""Films of episodes: frames from MuJoCo's offscreen renderer into an MP4 or a GIF."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import imageio
import numpy as np

from shared.envs import make_env
from shared.errors import InputError

SUFFIXES = (".mp4", ".gif")
_FRAMES_PER_SECOND = 25  # about, whatever the length of a step: more takes time to render and shows nothing more


class Filmed(gymnasium.Wrapper):
    """Hands every so many-th picture of each episode on."""

    def __init__(self, env: gymnasium.Env, show: Callable[[np.ndarray], Any], every: int) -> None:
        super().__init__(env)
        self._show, self._every, self._steps = show, every, 0

    def reset(self, **arguments: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode, with a picture."""
        result = self.env.reset(**arguments)
        self._steps = 0
        self._show(self.env.render())
        return result

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Makes a step, and perhaps a picture."""
        result = self.env.step(action)
        self._steps += 1
        if self._steps % self._every == 0:
            self._show(self.env.render())
        return result


def rendering_env(env_id: str) -> gymnasium.Env:
    """An environment that renders to arrays, tried once.

    Raises:
        InputError: The environment is unknown, or nothing here renders it.
    """
    try:
        env = make_env(env_id, render_mode="rgb_array")
        env.reset(seed=0)
        env.render()
    except InputError:
        raise
    except Exception as error:  # OpenGL's bindings raise whatever they stumble over where there is none
        raise InputError(
            f"nothing here renders {env_id} ({type(error).__name__}: {error}): set MUJOCO_GL to egl (with a GPU or Mesa) "
            "or to osmesa, or leave out --video"
        ) from error
    return env


@contextmanager
def film(path: Path) -> Iterator[Callable[[str], gymnasium.Env]]:
    """What makes environments whose episodes go into a film, which is written when the block ends well.

    Raises:
        InputError: The file's kind is unknown, a package is missing, or nothing here renders.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"cannot film into {path}: end its name in {' or '.join(SUFFIXES)}")
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    writer: Any = None

    def make(env_id: str) -> gymnasium.Env:
        nonlocal writer
        env = rendering_env(env_id)
        every = max(1, round(env.metadata["render_fps"] / _FRAMES_PER_SECOND))
        writer = _open(partial, env.metadata["render_fps"] / every)
        return Filmed(env, writer.append_data, every)

    try:
        yield make
        writer.close()
        partial.replace(path)
    except BaseException:
        if writer is not None:
            writer.close()
        partial.unlink(missing_ok=True)
        raise


def _open(path: Path, frames_per_second: float) -> Any:
    if path.suffix == ".gif":
        return imageio.get_writer(path, mode="I", duration=1000 / frames_per_second, loop=0)
    try:
        import imageio_ffmpeg  # noqa: F401 (imageio's plugin loads it)
    except ImportError as error:
        raise InputError("an MP4 needs imageio-ffmpeg: pip install 'corl-twins[play]', or film into a .gif") from error
    return imageio.get_writer(path, fps=frames_per_second, macro_block_size=1)
