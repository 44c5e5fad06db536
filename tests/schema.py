"""``python -m tests.schema`` writes the JSON Schema of reports anew, after a change of the domain's types."""

from __future__ import annotations

import json
from pathlib import Path

from privctl.domain.report import SCHEMA_VERSION
from privctl.reports.codec import schema


def main() -> None:
    """Write ``privctl/schemas/report-N.json``."""
    path = Path(__file__).resolve().parent.parent / "privctl" / "schemas" / f"report-{SCHEMA_VERSION}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(schema(), indent=2) + "\n")
    print(path)


if __name__ == "__main__":
    main()
