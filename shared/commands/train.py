"""`corl-twins train jax cql --seed 3`: does the same as `python corl_jax/cql.py --seed 3`, from any folder."""

from collections.abc import Sequence

from shared.commands.common import Parser
from shared.frameworks.twins import FRAMEWORKS, algorithms, load_twin, trainable
from shared.interrupts import ended_at_once
from shared.runs.configs import cli


def main(arguments: Sequence[str]) -> None:
    """Runs the command; like the twin's own file, it ends the process if a run does not end well.

    Raises:
        InputError: There is no such twin.
    """
    parser = Parser(
        prog="corl-twins train",
        usage="%(prog)s FRAMEWORK ALGORITHM [--setting VALUE ...]",
        description="Trains an algorithm. `corl-twins train FRAMEWORK ALGORITHM --help` lists its settings.",
    )
    parser.add_argument("framework", choices=FRAMEWORKS, metavar="FRAMEWORK", help="torch or jax")
    parser.add_argument("algorithm", metavar="ALGORITHM", help=f"one of {', '.join(algorithms('torch'))}")
    options = parser.parse_args(arguments[:2])
    name = trainable(options.framework, options.algorithm)
    with ended_at_once():
        twin = load_twin(options.framework, name)
    cli(twin.train, twin.TrainConfig, name, arguments[2:], prog=f"corl-twins train {options.framework} {name}")
