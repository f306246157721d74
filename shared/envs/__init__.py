"""Evaluation: environments with corrected physics, their registry, evaluators and scores."""

import os


def _import_mujoco() -> None:
    """Loads MuJoCo, whatever `MUJOCO_GL` says: that chooses a way to OpenGL, and only a film needs one.

    MuJoCo opens that way when it is loaded. `shared.envs.film` tries it again, and says what is wrong with it.
    """
    try:
        import mujoco
    except Exception:  # whatever a missing driver raises
        chosen = os.environ.get("MUJOCO_GL")
        if chosen is None:
            raise
        os.environ["MUJOCO_GL"] = "disable"
        try:
            import mujoco  # noqa: F401
        finally:
            os.environ["MUJOCO_GL"] = chosen


_import_mujoco()
