"""`python -m benchmarks.report`: every results file as a table."""

import json

from benchmarks import results, seeds


def main() -> None:
    """Prints one table for each file, with the machine and the command that it comes from."""
    for path in sorted(results.FOLDER.glob("*.json")):
        summary = json.loads(path.read_text())
        hardware = summary["hardware"]
        print(f"### {path.name}\n")
        print(f"`{summary['command']}` on {(hardware['gpus'] or [hardware['cpu']])[0]}, {hardware['cores']} cores, ")
        print(f"{summary['date']}\n")
        print(seeds.table(summary) if path.name.startswith("seeds-") else results.table(summary), end="\n\n")


if __name__ == "__main__":
    main()
