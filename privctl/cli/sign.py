"""``privctl sign``: sign reports, and check who signed them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.options import PATH, debug, force, reports_at
from privctl.domain.errors import CommandError, ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from privctl.gate.files import LoadedReport
    from privctl.reports.audit_log import AuditLog, Entry
    from privctl.reports.signing import Signer


@click.command()
@click.argument("reports", nargs=-1, type=PATH)
@click.option("--key", type=PATH, help="Private key to sign with.")
@click.option(
    "--check", "checks", multiple=True, type=PATH, help="Public key to check signatures against (repeatable)."
)
@click.option("--new-key", "stem", type=PATH, help="Create the key pair NAME.key (keep it secret) and NAME.pub.")
@force
@click.option("-q", "--quiet", is_flag=True, help="No notes.")
@click.option("--debug", is_flag=True, is_eager=True, expose_value=False, callback=debug, help="Show tracebacks.")
def sign(
    reports: tuple[Path, ...], key: Path | None, checks: tuple[Path, ...], stem: Path | None, force: bool, quiet: bool
) -> None:
    """Sign REPORTS or logs of audits with an Ed25519 key, or check who signed them.

    The signature is written beside each report as NAME.dsse.json: a DSSE envelope with an in-toto statement, which
    names the report and its output files by digest. It shows who vouches for the report, not that the report is true.
    `privctl gate --require-signer NAME.pub` accepts only reports with such a signature. You can give a model in place
    of its reports.

    For a log (.jsonl), the head of its hash chain is signed. It covers all lines so far, so a log that is later
    truncated or rewritten no longer has that head. Sign the log again after each audit, and publish the signature.

    Bundles that Sigstore's model_signing made with a key are accepted too, as NAME.sigstore.json beside a report or log
    (`model_signing sign key m.report.json --private_key ec.key --signature m.sigstore.json`): --check and
    --require-signer take its public key. Signing without a key (keyless) needs a network and an identity provider,
    which privctl does not use, and a gate does not read such signatures. Sign and verify the files with
    `model_signing sign sigstore` and `model_signing verify sigstore`, or cosign.

    With --check, exit code 1 means that a report or log is not signed by any of the keys, or was changed afterwards.
    Lines that were added to a log after it was signed are named, and do not change the exit code.

    \b
    Example:
      privctl sign --new-key ci
      privctl sign m.report.json m.audit.report.json --key ci.key
      privctl sign m.audits.jsonl --key ci.key
      privctl sign m.report.json --check ci.pub
    """
    from privctl.reports.signing import make_keys
    from privctl.show.progress import note

    if sum(option not in (None, ()) for option in (key, checks, stem)) != 1:
        raise CommandError(
            "give exactly one of --key (sign), --check (verify signatures) and --new-key (create a key pair)"
        )
    if stem is not None:
        if reports:
            raise CommandError("--new-key signs nothing; remove the reports, then sign them with --key")
        private, public = make_keys(stem)
        note(f"wrote {private}, which you must keep secret, and {public}", quiet=quiet)
        return
    if not reports:
        raise CommandError("there are no reports to sign or check; give their paths")
    reports = reports_at(reports, quiet)
    if key is not None:
        if _is_readable_by_others(key):
            note(f"{key} may be read by other users, who can sign as you do: chmod 600 {key}", quiet=quiet)
        for written in _signed(reports, key, force):
            note(f"wrote {written}", quiet=quiet)
        return
    if not _check_signatures(reports, checks):
        raise click.exceptions.Exit(ExitCode.REFUTED)


def _is_readable_by_others(key: Path) -> bool:
    try:
        return bool(key.stat().st_mode & 0o077)
    except OSError:
        return False  # reading it says why


def _signed(paths: Sequence[Path], key: Path, force: bool) -> list[Path]:
    from privctl.gate.files import read_bounded
    from privctl.reports.signing import LARGEST, Signer, envelope_path, private_key
    from privctl.storage.atomic import require_absent
    from privctl.storage.commit import write_together

    secret = private_key(key, read_bounded(key, LARGEST))
    itself = Signer(path=key, key=secret.public_key())
    _require_apart(paths)
    envelopes = [(envelope_path(path), *_envelope(path, secret)) for path in paths]
    for place, log, _ in envelopes:
        require_absent(place, force or (log is not None and _extends_signed(log, place, itself)), option="")
    replaced = force or any(log is not None for _, log, _ in envelopes)
    write_together({place: content for place, _, content in envelopes}, replace=replaced, public=True)
    return [place for place, _, _ in envelopes]


def _require_apart(paths: Sequence[Path]) -> None:
    """Raise CommandError where the signatures of two files would have one name."""
    from privctl.reports.signing import envelope_path

    signed: dict[Path, Path] = {}
    for path in paths:
        place = Path(os.path.abspath(envelope_path(path)))
        if place in signed and os.path.abspath(signed[place]) != os.path.abspath(path):
            raise CommandError(
                f"the signatures of {signed[place]} and {path} would both be called {place.name}; rename one of the two"
            )
        signed[place] = path


def _envelope(path: Path, secret: Ed25519PrivateKey) -> tuple[AuditLog | None, bytes]:
    """The log at ``path``, or None for a report, and its signed envelope."""
    from privctl.gate.files import LoadedReport
    from privctl.reports.signing import envelope, head_envelope

    loaded = _read(path)  # once, so that the digests are of the same bytes
    if isinstance(loaded, LoadedReport):
        return None, envelope(loaded.report, path.name, loaded.sha256, loaded.digest, secret)
    return loaded, head_envelope(loaded, secret)


def _extends_signed(log: AuditLog, place: Path, itself: Signer) -> bool:
    """Whether the signature at ``place`` is by the same key and of an earlier head of ``log``; it may be replaced."""
    from privctl.gate.files import read_bounded
    from privctl.reports.signing import LARGEST, signed_head

    try:
        signed_head(read_bounded(place, LARGEST), [itself], log)
    except InputError:
        return False
    return True


def _read(path: Path) -> LoadedReport | AuditLog:
    """The log of audits at ``path`` where its name ends in .jsonl, else the report."""
    from privctl.gate.files import LARGEST_REPORT, load, read_bounded
    from privctl.reports.audit_log import read_log

    return read_log(path) if path.name.endswith(".jsonl") else load(path, read_bounded(path, LARGEST_REPORT))


def _check_signatures(paths: Sequence[Path], keys: Sequence[Path]) -> bool:
    """Print who signed each report or log, and return whether each is signed by one of the ``keys``."""
    from privctl.gate.files import read_bounded
    from privctl.gate.signatures import first_accepted
    from privctl.reports.signing import LARGEST, signer
    from privctl.show.plain import plain

    signers = [signer(path, read_bounded(path, LARGEST)) for path in keys]
    fine = True
    for path in paths:
        loaded = _read(path)
        try:
            status = first_accepted(path, partial(_signers_text, loaded, signers))
        except InputError as fault:
            fine = False
            status = f"NOT SIGNED: {fault}"
        click.echo(plain(f"{path}: {status}"))
    return fine


def _unsigned(log: AuditLog, signed: Entry) -> str:
    """The remark on lines of ``log`` after the ``signed`` one; empty where there are none."""
    first, last = signed.number + 1, len(log.entries)
    if first > last:
        return ""
    lines = f"line {last} is" if first == last else f"lines {first} to {last} are"
    return f"; {lines} NOT SIGNED: sign the log again"


def _signers_text(loaded: LoadedReport | AuditLog, signers: Sequence[Signer], signature: bytes) -> str:
    from privctl.gate.files import LoadedReport
    from privctl.reports.signing import signed_by, signed_head

    upto = ""
    if isinstance(loaded, LoadedReport):
        who = signed_by(signature, signers, loaded.report, loaded.digest, loaded.sha256)
    else:
        who, entry = signed_head(signature, signers, loaded)
        upto = f" up to line {entry.number} of {len(loaded.entries)}, {entry.digest}{_unsigned(loaded, entry)}"
    return f"signed by {who.path} (key {who.key_id[:16]}){upto}"
