"""``privctl sign``: who vouches for a report, and for the model it describes."""

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
@click.option("--check", "checks", multiple=True, type=_FILE, help="Check signatures by this public key (repeatable).")
@click.option("--new-key", "stem", type=_FILE, help="Make NAME.key, to be kept secret, and NAME.pub, to be given away.")
@force
@click.option("-q", "--quiet", is_flag=True, help="No notes.")
@click.option("--debug", is_flag=True, expose_value=False, callback=debug, help="Show tracebacks.")
def sign(
    reports: tuple[Path, ...], key: Path | None, checks: tuple[Path, ...], stem: Path | None, force: bool, quiet: bool
) -> None:
    """Sign REPORTS with an Ed25519 key, or check who signed them.

    The signature lies beside each report, as NAME.dsse.json: a DSSE envelope over an in-toto statement that names the
    report and every file it wrote by digest. It shows who spoke, not that what was said is true. `privctl gate
    --require-signer NAME.pub` accepts reports with such a signature alone.

    With --check, exit code 1 says that a report is not signed by any of the keys, or was changed afterwards.

    \b
    Example:
      privctl sign --new-key ci
      privctl sign m.report.json m.audit.report.json --key ci.key
      privctl sign m.report.json --check ci.pub
    """
    from privctl.reports.signing import make_keys
    from privctl.show.progress import note

    if sum(each not in (None, ()) for each in (key, checks, stem)) != 1:
        raise UsageFault("give one of --key (sign), --check (who signed) and --new-key (make a pair of keys)")
    if stem is not None:
        if reports:
            raise UsageFault("--new-key makes keys and signs nothing; call again with --key")
        private, public = make_keys(stem)
        note(f"wrote {private}, which nobody else may have, and {public}", quiet=quiet)
        return
    if not reports:
        raise UsageFault("nothing says which reports; give their paths")
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
    made = {
        place: envelope(each.report, each.path.name, content, each.digest, secret)
        for each, content, place in zip(loaded, contents, places, strict=True)
    }
    write_together(made, replace=force, public=True)
    return list(made)


def _checked(reports: Sequence[Path], keys: Sequence[Path]) -> bool:
    """Print who signed each report; whether one of the keys signed all of them."""
    from privctl.gate.files import LARGEST_REPORT, load, read_bounded
    from privctl.reports.signing import LARGEST, envelope_path, signed_by, signer
    from privctl.show.plain import plain

    signers = [signer(path, read_bounded(path, LARGEST)) for path in keys]
    fine = True
    for path in reports:
        report = load(path, read_bounded(path, LARGEST_REPORT))
        place = envelope_path(path)
        try:
            found = signed_by(read_bounded(place, LARGEST), signers, report.report, report.digest)
        except InputFault as fault:
            fine = False
            said = str(fault) if str(fault).startswith(str(place)) else f"{place} {fault}"
            click.echo(plain(f"{path}: NOT SIGNED: {said}"))
        else:
            click.echo(plain(f"{path}: signed by {found.path} (key {found.key_id[:16]})"))
    return fine
