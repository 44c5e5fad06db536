"""Make the bill of materials of the gate in CI, as CycloneDX 1.5 JSON: privctl and the pins of ci/requirements.txt.

``python ci/sbom.py > ci/sbom.json``. The output depends only on the two files that it reads.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "ci" / "requirements.txt"
_PIN = re.compile(r"^([a-z0-9-]+)==([0-9.]+)((?: --hash=sha256:[0-9a-f]{64})+)$")


def pins(text: str) -> list[tuple[str, str, list[str]]]:
    """Name, version and SHA-256 digests of every requirement in ``text``, the content of a requirements file.

    Raises ValueError for a requirement that is not pinned by hash.
    """
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _PIN.match(" ".join(line.split()))
        if match is None:
            raise ValueError(f"{line!r} is not NAME==VERSION with --hash=sha256:...")
        found.append((match[1], match[2], re.findall("[0-9a-f]{64}", match[3])))
    return found


def bill(text: str, version: str) -> dict[str, Any]:
    """The document for the requirements in ``text`` and privctl's ``version``.

    A component has the digests of all of its wheels, of which one is installed.
    """
    components = [_component(name, number, digests) for name, number, digests in pins(text)]
    subject = _component("privctl", version, [])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**subject, "type": "application"}},
        "components": components,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": sorted(c["bom-ref"] for c in components)}],
    }


def _component(name: str, version: str, digests: list[str]) -> dict[str, Any]:
    url = f"pkg:pypi/{name}@{version}"
    found: dict[str, Any] = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    if digests:
        found["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in sorted(digests)]
    return found


def own_version() -> str:
    """The version of privctl, read from its source without importing it."""
    (found,) = re.findall(
        r'^VERSION = "([^"]+)"$', (ROOT / "privctl" / "domain" / "version.py").read_text(), re.MULTILINE
    )
    return str(found)


if __name__ == "__main__":
    json.dump(bill(REQUIREMENTS.read_text(encoding="utf-8"), own_version()), sys.stdout, indent=2)
    sys.stdout.write("\n")
