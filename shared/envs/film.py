"""Films of episodes: MuJoCo's offscreen renderer writes an MP4 or a GIF."""

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
_FRAMES_PER_SECOND = 25  # approximate: more frames take time to render, but look the same


class Filmed(gymnasium.Wrapper):
    """Passes every `every`-th frame of each episode on to `show`."""

    def __init__(self, env: gymnasium.Env, show: Callable[[Any], Any], every: int) -> None:
        super().__init__(env)
        self._show, self._every, self._steps = show, every, 0

    def reset(self, **arguments: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode, and films its first frame."""
        result = self.env.reset(**arguments)
        self._steps = 0
        self._picture()
        return result

    def step(self, action: np.ndarray) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """Takes a step, and films a frame if one is due."""
        result = self.env.step(action)
        self._steps += 1
        if self._steps % self._every == 0:
            self._picture()
        return result

    def _picture(self) -> None:
        """Renders a frame and passes it on.

        Raises:
            InputError: The renderer or the writer of the film fails.
        """
        try:
            self._show(self.env.render())
        except Exception as error:  # MuJoCo's errors, imageio's, ffmpeg's, the disk's
            raise InputError(f"cannot film ({reason(error)}): leave out --video, or name another file") from error


def choose_renderer() -> None:
    """Sets `MUJOCO_GL` to the first of MuJoCo's OpenGL backends that works here, unless it is set.

    Each is tried in a separate process, because a process can only use one, and a broken driver may end it.

    Raises:
        InputError: No backend works, or the one that is set does not.
    """
    # JAX warns of forks in a process with threads; these forks are harmless because they run another program at once.
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
    """Yields a function that makes filmed environments; the film is kept only if the block ends without an error.

    Raises:
        InputError: The file type is unknown, a package is missing, or no renderer works here.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"cannot film into {path}: end its name in {' or '.join(SUFFIXES)}")
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    writer: Any = None
    choose_renderer()

    def make(env_id: str) -> gymnasium.Env:
        nonlocal writer
        try:
            env = make_env(env_id, render_mode="rgb_array")
        except InputError:
            make_env(env_id).close()  # raises if it cannot be made at all
            raise InputError(
                f"environment {env_id!r} cannot be filmed: let it take render_mode 'rgb_array', or leave out --video"
            ) from None
        frames_per_second = env.metadata.get("render_fps") or _FRAMES_PER_SECOND  # Gymnasium does not require it
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
