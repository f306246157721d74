"""`MUJOCO_GL` chooses how a film is drawn, and affects nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_STEP = """
import os
from shared.envs.registry import make_env
env = make_env("d4rl/hopper-v2")
env.reset(seed=0)
env.step(env.action_space.high)
print(os.environ["MUJOCO_GL"])
"""
_FILM = """
from shared.commands.common import ended
from shared.envs.film import choose_renderer
raise SystemExit(ended(lambda _: choose_renderer(), []))
"""


def started(script: str, renderer: str) -> subprocess.CompletedProcess[str]:
    """A process in which MuJoCo should use this renderer."""
    environment = os.environ | {"MUJOCO_GL": renderer}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=ROOT, timeout=120
    )


@pytest.mark.parametrize("renderer", ["foo", pytest.param("osmesa", marks=pytest.mark.thorough)])
def test_an_environment_steps_without_a_renderer(renderer: str) -> None:
    """The variable is kept for later films."""
    done = started(_STEP, renderer)
    assert (done.returncode, done.stdout) == (0, f"{renderer}\n"), done.stderr


def test_a_film_names_the_renderer_that_is_none() -> None:
    done = started(_FILM, "foo")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: nothing here renders: MuJoCo finds no OpenGL by foo (")
    assert "unset MUJOCO_GL" in done.stderr
