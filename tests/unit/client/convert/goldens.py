"""The golden files: jobs of other operators, the ElasticJobs that they become, and the reports.

After a change that is meant to change them, `python -m tests.unit.client.convert.goldens` in the root of the repository
writes them again. Read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

from elasticjob.convert import Converted, convert_all, dump, parse, report

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir())


def converted(case: str) -> list[Converted]:
    """The case's input, converted; with its runtime, if it has one in a file of its own."""
    folder = GOLDEN / case
    runtime = folder / "runtime.yaml"
    runtimes = parse(runtime.read_text(encoding="utf-8"), runtime.name) if runtime.exists() else []
    return convert_all(parse((folder / "input.yaml").read_text(encoding="utf-8"), "input.yaml"), runtimes)


def expected(case: str) -> dict[Path, str]:
    """Path of each golden file -> what it must contain."""
    found = converted(case)
    return {
        GOLDEN / case / "elasticjob.yaml": "---\n".join(dump(item.manifest) for item in found),
        GOLDEN / case / "report.txt": report.text(found),
    }


def main() -> None:
    for case in CASES:
        for path, text in expected(case).items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
