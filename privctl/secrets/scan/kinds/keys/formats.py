"""Keys and tokens in formats documented by their issuers."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator

from privctl.secrets.scan.kinds.place import Occurrence

_WORD = "[0-9A-Za-z_-]"
#: Issuer -> format. Most begin with fixed characters, which makes the search fast.
FORMATS: dict[str, str] = {
    "AWS key id": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![0-9A-Za-z])",
    "GitHub": r"gh[pousr]_[0-9A-Za-z]{36,255}",
    "GitHub fine-grained": r"github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}",
    "GitLab": rf"gl(?:pat|oas|dt|rt|ptt|ft|imt|agent|cbt)-{_WORD}{{20,300}}",
    "Slack token": r"xox[abeoprs](?:-[0-9A-Za-z]{1,200}){2,10}",
    "Slack app": r"xapp-[0-9]-[0-9A-Z]{5,20}-[0-9]{5,20}-[0-9a-f]{32,64}",
    "Slack hook": r"hooks\.slack\.com/(?:services|workflows|triggers)/[0-9A-Za-z]{5,20}/[0-9A-Za-z/]{10,80}",
    "Stripe": r"(?:sk|rk)_(?:live|test)_[0-9A-Za-z]{16,247}",
    "Stripe hook": r"whsec_[0-9A-Za-z+/]{32,}={0,2}",
    "Google API": rf"AIza{_WORD}{{35}}(?!{_WORD})",
    "Google client": rf"GOCSPX-{_WORD}{{28}}(?!{_WORD})",
    "Google access": rf"ya29\.{_WORD}{{20,1000}}",
    "Google refresh": rf"1//0{_WORD}{{30,200}}",
    "OpenAI": rf"sk-(?:proj|svcacct|admin)-{_WORD}{{20,300}}|sk-[0-9A-Za-z]{{20}}T3BlbkFJ[0-9A-Za-z]{{20}}",
    "Anthropic": rf"sk-ant-{_WORD}{{20,300}}",
    "Hugging Face": r"hf_[A-Za-z]{34}(?![0-9A-Za-z])",
    "npm": r"npm_[0-9A-Za-z]{36}(?![0-9A-Za-z])",
    "PyPI": rf"pypi-AgE{_WORD}{{50,1000}}",
    "SendGrid": rf"SG\.{_WORD}{{22}}\.{_WORD}{{43}}",
    "Twilio": r"SK[0-9a-f]{32}(?![0-9A-Za-z])",
    "Telegram": rf"[0-9]{{8,10}}:AA{_WORD}{{33}}(?!{_WORD})",
    "DigitalOcean": r"do[opr]_v1_[0-9a-f]{64}",
    "Shopify": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "JWT": rf"(?P<jwt>eyJ{_WORD}{{8,}}\.{_WORD}{{2,}}\.{_WORD}*)",
}
_KNOWN = re.compile(rf"(?<![0-9A-Za-z])(?:{'|'.join(FORMATS.values())})")
#: All of the above have at least this many characters without a space.
_SHORTEST = 16

_ARMOUR = re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_ARMOUR_END = re.compile(r"-----END [A-Z0-9 ]{1,60}-----")
_ARMOURED = re.compile(r"(?:[0-9A-Za-z+/=:,.\s-]|\\[nr])*")
_LINE_ENDS = re.compile(r"\s|\\[nr]")

#: The password in a URL such as ``postgres://ann:PASSWORD@host/``.
_IN_ADDRESS = re.compile(r"://[^\s:/@\"'<>\[\]{}()]{0,64}:([^\s/@\"'<>\[\]{}()]{3,128})@[\w.-]+")
_PLACEHOLDER = re.compile(r"[$%*]|(?:pass(?:word)?|passwd|pwd|secret|token|x+)$", re.IGNORECASE)


def find(text: str) -> Iterator[Occurrence]:
    """The keys of known formats in ``text``, private keys in PEM or PGP armour, and passwords in URLs."""
    if "-----BEGIN " in text:
        yield from _find_armoured(text)
    if max(map(len, text.split()), default=0) < _SHORTEST:
        return
    for match in _KNOWN.finditer(text):
        if match["jwt"] is None or _is_header(match[0]):
            yield Occurrence(match.start(), match.end(), match[0], match[0])
    if "://" in text:
        yield from _in_addresses(text)


def _find_armoured(text: str) -> Iterator[Occurrence]:
    """Armoured blocks, complete or not; the key does not depend on how its lines are broken."""
    for begin in _ARMOUR.finditer(text):
        stop = text.find("-----", begin.end())
        body = _ARMOURED.match(text, begin.end(), len(text) if stop < 0 else stop)
        content = "" if body is None else _LINE_ENDS.sub("", body[0])
        if body is not None and len(content) > _SHORTEST:
            last = _ARMOUR_END.match(text, body.end())
            end = body.end() if last is None else last.end()
            yield Occurrence(begin.start(), end, content, text[begin.start() : end])


def _is_header(token: str) -> bool:
    """Whether the first part of ``token`` is the JSON header of a JWT (RFC 7515)."""
    head = token.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError):
        return False
    return isinstance(header, dict) and "alg" in header


def _in_addresses(text: str) -> Iterator[Occurrence]:
    for match in _IN_ADDRESS.finditer(text):
        if not _PLACEHOLDER.match(match[1]):
            yield Occurrence(match.start(), match.end(), match[1], match[1])
