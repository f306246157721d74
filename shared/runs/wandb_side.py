"""Weights & Biases, where a run's metrics go too if that is wanted."""

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

from shared.errors import InputError, reason


def import_wandb(mode: str) -> ModuleType | None:
    """Weights & Biases if it is wanted, and able to go online without asking if it should.

    Raises:
        InputError: It should be online but nobody is logged in, or it cannot be imported.
    """
    if mode == "off":
        return None
    try:
        import wandb  # takes half a second, and most runs do without

        ready = mode == "offline" or wandb.login(prompt=False)
    except Exception as error:  # its own, its libraries' and the network's
        raise _cannot_start(error) from error
    if not ready:
        raise InputError("Weights & Biases has no API key: run `wandb login` once, or use --wandb_mode offline")
    return wandb


def start_wandb(wandb: ModuleType | None, config: Any, folder: Path) -> Any:
    """Begins the record of a run, or goes on with it, and returns it; None without the module.

    Args:
        wandb: What `import_wandb` returned.
        config: Has `project`, `group` and `wandb_mode`.
        folder: The run's, whose last eight digits are the record's id.

    Raises:
        InputError: It cannot start.
    """
    if wandb is None:
        return None
    try:
        return wandb.init(
            project=config.project,
            group=config.group,
            name=folder.name,
            id=folder.name.rpartition("-")[2],
            resume="allow",
            config=dataclasses.asdict(config),
            dir=folder,
            mode=config.wandb_mode,
            reinit="create_new",  # a record for each of several seeds at once
        )
    except Exception as error:  # its own, its service's and the disk's
        raise _cannot_start(error) from error


def _cannot_start(error: Exception) -> InputError:
    return InputError(f"Weights & Biases cannot start ({reason(error)}): use --wandb_mode offline, or off")
