"""``python -m tests.docs.generate`` writes what of ``docs/`` is made from the program and its measurements."""

from __future__ import annotations

from pathlib import Path

from tests.docs import (
    audit_tables,
    commands,
    coverage_tables,
    fields,
    figures,
    judged,
    peer_tables,
    picture,
    scale_tables,
)
from tests.docs.pages import DOCS, ROOT


def generated() -> dict[Path, str]:
    """Each page that is made, or holds made parts, as it ought to be."""
    found = {DOCS / "cli.md": commands.reference(), DOCS / "demo.svg": picture.svg()}
    generated_parts = {
        "reports.md": fields.parts(), "performance.md": figures.parts() | peer_tables.of_precision(),
        "utility.md": figures.of_utility(),
        "claims.md": judged.parts(),
        "scale.md": scale_tables.parts(), "architectures.md": coverage_tables.parts(),
        "audit-measurements.md": audit_tables.of_audits(), "attack-measurements.md": audit_tables.of_attacks(),
        "canaries.md": audit_tables.of_canaries(), "extraction.md": audit_tables.of_extraction(),
        "attack-comparison.md": peer_tables.parts(),
    }  # fmt: skip
    for name, parts in generated_parts.items():
        text = (DOCS / name).read_text(encoding="utf-8")
        for part, body in parts.items():
            text = _with_part(text, part, body)
        found[DOCS / name] = text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return found | {ROOT / "README.md": _with_part(readme, "figures peers", figures.peers())}


def _with_part(text: str, part: str, body: str) -> str:
    """``text`` with ``body`` between the marks of ``part``; raises ValueError where they are missing."""
    begin, end = f"<!-- {part} -->\n", f"<!-- /{part} -->\n"
    if begin not in text or end not in text:
        raise ValueError(f"there are no marks for {part}")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{body}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Write them."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
