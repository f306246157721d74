"""Mistakes with images that an update crops at random, for every pair that does so at one call."""

from parity_tests.pair import Mistake


def mistakes(padding: str, rung: str) -> list[Mistake]:
    """What the ladder's variant `images` finds.

    Args:
        padding: How the twin writes the padding in its call.
        rung: The first that looks at cropped images.
    """
    call = f"cropped(batch, noise.crops, {padding})"
    planted = {
        "images as they are": "batch",
        "the next images as they are": f"{call}._replace(next_observations=batch.next_observations)",
        "one crop for the whole batch": _with(call, "noise.crops[:, :1].repeat(len(batch.actions), axis=1)"),
        "the next images cropped like the others": _with(call, "noise.crops[:1].repeat(2, axis=0)"),
        "rows and columns exchanged": _with(call, "noise.crops[..., ::-1]"),
        "images that only move one way": call.replace(padding, "0"),
    }
    return [Mistake(name, call, new, rung, "images") for name, new in planted.items()]


def _with(call: str, crops: str) -> str:
    """The call with other crops, where there are any."""
    return call.replace("noise.crops", f"None if noise.crops is None else {crops}")


# In how crops are drawn
DRAWN = [
    Mistake("crops that never reach the last place", "0, 2 * hp.crop_padding + 1)", "0, 2 * hp.crop_padding)", "draws",
            "images"),
    Mistake("rows and crops from one key", "key, crops_key = jax.random.split(key)", "crops_key = key", "draws",
            "images"),
]  # fmt: skip
