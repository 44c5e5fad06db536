"""The request for an audit, as stated in its report and repeated in its file of ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audits.claims import EpsilonClaim
from privctl.domain.report import Artifact, ParentReport
from privctl.reports.audit_parameters import AskedAudit
from privctl.reports.codec import encode_value
from privctl.reports.files import versions

#: The keys in the header of a file of ranks: of the request, of all other parameters that the report states, of the
#: files and reports that it names, and of the versions of packages.
ASKED, SETTINGS, READ, VERSIONS = "privctl.asked", "privctl.settings", "privctl.read", "privctl.versions"
#: Packages on which an audit's figures depend.
PACKAGES = ("torch", "transformers", "numpy", "scipy", "tokenizers")


def pairs_of(claims: Iterable[EpsilonClaim]) -> tuple[tuple[float, float], ...]:
    """The distinct (epsilon, delta) of the claims."""
    return tuple(dict.fromkeys((claim.epsilon, claim.delta) for claim in claims))


def files_of(artifacts: Sequence[Artifact]) -> dict[str, tuple[str, ...]]:
    """The digests of ``artifacts`` by role."""
    roles = dict.fromkeys(artifact.role for artifact in artifacts)
    return {role: tuple(artifact.digest for artifact in artifacts if artifact.role == role) for role in roles}


def stated(asked: AskedAudit) -> dict[str, Any]:
    """``asked`` as stated in a report's parameters, without what was not asked."""
    entries = encode_value(asked).items()
    return {
        name: value for name, value in entries if value is not None and value is not False and value not in ([], {})
    }


def as_text(asked: AskedAudit) -> str:
    """``stated`` as JSON, for the header of a file of ranks."""
    return json.dumps(stated(asked), sort_keys=True)


def settings_text(parameters: Mapping[str, Any]) -> str:
    """The ``parameters`` of a report but for the request, as JSON, for the header of a file of ranks."""
    return json.dumps({name: encode_value(value) for name, value in parameters.items() if name != "asked"})


def read_text(inputs: Sequence[Artifact], parents: Sequence[ParentReport]) -> str:
    """The digests of the ``inputs`` of a report by role, and of its ``parents``, as JSON, for the header of ranks."""
    return json.dumps({"inputs": files_of(inputs), "parents": [parent.digest for parent in parents]})


def versions_text() -> str:
    """The versions of privctl, Python and ``PACKAGES`` as JSON, for the header of a file of ranks."""
    return json.dumps(versions(PACKAGES))
