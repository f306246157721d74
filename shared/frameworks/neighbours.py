"""The choice of the faster nearest-neighbour search, in either framework."""


def search_on(platform: str, how: str) -> str:
    """Chooses how to search rows on a device: by a k-d tree on the host, or by brute force on the device.

    The page on PRDC has the measurements for `auto`.

    Args:
        platform: Kind of device, such as `cpu`, `cuda` or `gpu`.
        how: `tree`, `brute`, or `auto` for the faster one on this kind of device.

    Returns:
        `tree` or `brute`.
    """
    if how != "auto":
        return how
    return "tree" if platform == "cpu" else "brute"
