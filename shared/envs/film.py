"""Films of episodes: frames from MuJoCo's offscreen renderer into an MP4 or a GIF."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import imageio.v2 as imageio
import numpy as np

from shared.envs.registry import make_env
from shared.errors import InputError, reason

SUFFIXES = (".mp4", ".gif")
_BACKENDS = ("glfw", "egl", "osmesa")
_TRIAL = """
import os
import mujoco
context = mujoco.GLContext(64, 64)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_150)
os._exit(0)  # whatever the driver would do at an orderly end
"""
_FRAMES_PER_SECOND = 25  # about, whatever the length of a step: more takes time to render and shows nothing more


class Filmed(gymnasium.Wrapper):
    """Hands every so many-th picture of each episode on."""

    def __init__(self, env: gymnasium.Env, show: Callable[[Any], Any], every: int) -> None:
        super().__init__(env)
        self._show, self._every, self._steps = show, every, 0

    def reset(self, **arguments: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode, with a picture."""
        result = self.env.reset(**arguments)
        self._steps = 0
        self._picture()
        return result

    def step(self, action: np.ndarray) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """Makes a step, and perhaps a picture."""
        result = self.env.step(action)
        self._steps += 1
        if self._steps % self._every == 0:
            self._picture()
        return result

    def _picture(self) -> None:
        """Makes one and hands it on.

        Raises:
            InputError: The renderer, or what writes the film, fails.
        """
        try:
            self._show(self.env.render())
        except Exception as error:  # MuJoCo's, imageio's, ffmpeg's, the disk's
            raise InputError(f"cannot film ({reason(error)}): leave out --video, or name another file") from error


def choose_renderer() -> None:
    """Sets `MUJOCO_GL` to the first of MuJoCo's ways to OpenGL that works here, unless it is set.

    Each is tried in a process of its own: in one process there can be only one, and a broken driver ends it.

    Raises:
        InputError: None works, or not the one that is set.
    """
    # JAX warns of every process that is started beside its threads; those here become another program at once.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    chosen = os.environ.get("MUJOCO_GL")
    backends = (chosen,) if chosen else _BACKENDS
    for backend in backends:
        environment = os.environ | {"MUJOCO_GL": backend}
        tried = subprocess.run([sys.executable, "-c", _TRIAL], env=environment, capture_output=True, text=True)
        if tried.returncode == 0:
            os.environ["MUJOCO_GL"] = backend
            return
    reason = (tried.stderr.strip().splitlines() or [f"it ended with {tried.returncode}"])[-1]
    unset = "unset MUJOCO_GL, " if chosen else ""
    raise InputError(
        f"nothing here renders: MuJoCo finds no OpenGL by {', '.join(backends)} ({reason}); {unset}install libegl1 or "
        "libosmesa6, or leave out --video"
    )


@contextmanager
def film(path: Path) -> Iterator[Callable[[str], gymnasium.Env]]:
    """Yields a maker of environments that are filmed; the film is written if the block ends without an error.

    Raises:
        InputError: The file's kind is unknown, a package is missing, or nothing here renders.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"cannot film into {path}: end its name in {' or '.join(SUFFIXES)}")
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    writer: Any = None
    choose_renderer()

    def make(env_id: str) -> gymnasium.Env:
        nonlocal writer
        env = make_env(env_id, render_mode="rgb_array")
        frames_per_second = env.metadata.get("render_fps") or _FRAMES_PER_SECOND  # Gymnasium does not ask for it
        every = max(1, round(frames_per_second / _FRAMES_PER_SECOND))
        writer = _open(partial, frames_per_second / every)
        return Filmed(env, writer.append_data, every)

    try:
        yield make
        writer.close()
        partial.replace(path)
    except BaseException:
        if writer is not None:
            with suppress(Exception):  # what has failed may fail again
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
