"""Which search for the nearest rows is the fast one, in either framework."""


def search_on(platform: str, how: str) -> str:
    """How rows on a device are searched: by a k-d tree on the host, or by brute force on the device.

    The page on PRDC has the times behind `auto`.

    Args:
        platform: Kind of device, such as `cpu`, `cuda` or `gpu`.
        how: `tree`, `brute`, or `auto` for the one that is faster there.

    Returns:
        `tree` or `brute`.
    """
    if how != "auto":
        return how
    return "tree" if platform == "cpu" else "brute"
