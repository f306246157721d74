"""`python -m benchmarks.report`: every results file as a table."""

import json

from benchmarks.results import FOLDER, table


def main() -> None:
    """Prints one table for each machine that was measured."""
    for path in sorted(FOLDER.glob("*.json")):
        summary = json.loads(path.read_text())
        hardware, packages = summary["hardware"], summary["versions"]
        print(f"### {hardware['gpus'] or hardware['cpu']}, {hardware['cores']} cores, {summary['date']}")
        print(f"`{summary['command']}`, torch {packages['torch']}, jax {packages['jax']}, {path.name}\n")
        print(table(summary), end="\n\n")


if __name__ == "__main__":
    main()
