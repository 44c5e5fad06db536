"""``privctl sign``: sign reports, and check who signed them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.options import debug, force
from privctl.domain.errors import ExitCode, InputFault, UsageFault

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("reports", nargs=-1, type=_FILE)
@click.option("--key", type=_FILE, help="Private key to sign with.")
@click.option("--check", "checks", multiple=True, type=_FILE, help="Public key to check signatures with (repeatable).")
@click.option("--new-key", "stem", type=_FILE, help="Create the key pair NAME.key (keep it secret) and NAME.pub.")
@force
@click.option("-q", "--quiet", is_flag=True, help="No notes.")
@click.option("--debug", is_flag=True, expose_value=False, callback=debug, help="Show tracebacks.")
def sign(
    reports: tuple[Path, ...], key: Path | None, checks: tuple[Path, ...], stem: Path | None, force: bool, quiet: bool
) -> None:
    """Sign REPORTS with an Ed25519 key, or check who signed them.

    The signature is written beside each report as NAME.dsse.json: a DSSE envelope over an in-toto statement that names
    the report and its output files by digest. It shows who issued the report, not that the report is true. `privctl
    gate --require-signer NAME.pub` accepts only reports with such a signature.

    With --check, exit code 1 means that a report is not signed by any of the keys, or was changed afterwards.

    \b
    Example:
      privctl sign --new-key ci
      privctl sign m.report.json m.audit.report.json --key ci.key
      privctl sign m.report.json --check ci.pub
    """
    from privctl.reports.signing import make_keys
    from privctl.show.progress import note

    if sum(option not in (None, ()) for option in (key, checks, stem)) != 1:
        raise UsageFault(
            "give exactly one of --key (sign), --check (verify signatures) and --new-key (create a key pair)"
        )
    if stem is not None:
        if reports:
            raise UsageFault("--new-key signs nothing; remove the reports, then sign them with --key")
        private, public = make_keys(stem)
        note(f"wrote {private}, which you must keep secret, and {public}", quiet=quiet)
        return
    if not reports:
        raise UsageFault("there are no reports to sign or check; give their paths")
    if key is not None:
        for written in _signed(reports, key, force):
            note(f"wrote {written}", quiet=quiet)
        return
    if not _checked(reports, checks):
        raise click.exceptions.Exit(ExitCode.REFUTED)


def _signed(reports: Sequence[Path], key: Path, force: bool) -> list[Path]:
    from privctl.gate.files import LARGEST_REPORT, load, read_bounded
    from privctl.reports.signing import LARGEST, envelope, envelope_path, private_key
    from privctl.storage.atomic import require_absent
    from privctl.storage.commit import write_together

    secret = private_key(key, read_bounded(key, LARGEST))
    places = [envelope_path(report) for report in reports]
    for place in places:
        require_absent(place, force)
    contents = [read_bounded(report, LARGEST_REPORT) for report in reports]
    loaded = [load(report, content) for report, content in zip(reports, contents, strict=True)]
    envelopes = {
        place: envelope(loaded_report.report, loaded_report.path.name, content, loaded_report.digest, secret)
        for loaded_report, content, place in zip(loaded, contents, places, strict=True)
    }
    write_together(envelopes, replace=force, public=True)
    return list(envelopes)


def _checked(reports: Sequence[Path], keys: Sequence[Path]) -> bool:
    """Print who signed each report; return whether every report is signed by one of the keys."""
    from privctl.gate.files import LARGEST_REPORT, load, read_bounded
    from privctl.reports.signing import LARGEST, envelope_path, signed_by, signer
    from privctl.show.plain import plain

    signers = [signer(path, read_bounded(path, LARGEST)) for path in keys]
    all_signed = True
    for path in reports:
        report = load(path, read_bounded(path, LARGEST_REPORT))
        place = envelope_path(path)
        try:
            key = signed_by(read_bounded(place, LARGEST), signers, report.report, report.digest)
        except InputFault as fault:
            all_signed = False
            reason = str(fault) if str(fault).startswith(str(place)) else f"{place} {fault}"
            click.echo(plain(f"{path}: NOT SIGNED: {reason}"))
        else:
            click.echo(plain(f"{path}: signed by {key.path} (key {key.key_id[:16]})"))
    return all_signed
