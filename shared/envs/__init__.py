"""Evaluation: environments with corrected physics, their registry, evaluators and scores."""

import os


def _import_mujoco() -> None:
    """Loads MuJoCo even if `MUJOCO_GL` cannot be used here, because only films need OpenGL.

    MuJoCo initialises OpenGL when it is imported. `shared.envs.film` tries it again, and reports what is wrong with it.
    """
    try:
        import mujoco
    except Exception:  # a missing driver may raise anything
        chosen = os.environ.get("MUJOCO_GL")
        if chosen is None:
            raise
        os.environ["MUJOCO_GL"] = "disable"
        try:
            import mujoco  # noqa: F401
        finally:
            os.environ["MUJOCO_GL"] = chosen


_import_mujoco()
