"""A made-up corpus with planted secrets in many ways of writing, and what looks like secrets but is none.

Check digits are computed here by other means than in the code under test. Tokens are put together when tests run, so
that no file holds one.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Iterator
from uuid import UUID

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
DIGITS, WORD = string.digits, string.ascii_letters + string.digits
#: What stands around a secret; no word in them announces one.
AROUND = (
    "Please use {} from now on.",
    "{}",
    "see ({}), as agreed",
    '"{}"',
    "first line\n{}\nlast line",
    "it was {}, she said.",
    "value={};",
    "| 7 | {} | x |",
    "请用{}谢谢",
    "<b>{}</b>",
    "Straße 12, {}.",
    "[{}]",
)


def drawn(rng: random.Random, signs: str, size: int) -> str:
    return "".join(rng.choices(signs, k=size))


def luhn(body: str) -> str:
    """``body`` with its check digit, found by trying all."""
    for last in DIGITS:
        total = 0
        for i, sign in enumerate(reversed(body + last)):
            value = int(sign) * (2 if i % 2 else 1)
            total += value - 9 if value > 9 else value
        if total % 10 == 0:
            return body + last
    raise AssertionError


def grouped(text: str, sizes: tuple[int, ...], sign: str) -> str:
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    assert at == len(text)
    return sign.join(parts)


def emails(rng: random.Random) -> list[str]:
    name = rng.choice(["ann", "a.b", "o'brien", "jo-ann", "x_y", "ann+list", "müller", "анна", "n%1"]) + drawn(
        rng, WORD, 3
    )
    host = rng.choice(["mail", "a-b", "sub.mail", "bücher"]) + drawn(rng, string.ascii_lowercase, 3)
    top = rng.choice(["org", "co.uk", "museum", "io", "xn--p1ai"])
    plain = f"{name}@{host}.{top}"
    forms = [plain, plain.upper(), f"{name}@{host.title()}.{top}"]
    if name.isascii() and "'" not in name:
        spelled = (
            f"{name.replace('.', ' (dot) ')} [at] {host.replace('.', ' [dot] ')} (dot) {top.replace('.', ' dot ')}"
        )
        forms.append(f"{name} (at) {host}.{top}")
        if "." not in top:
            forms.append(spelled)
    return forms


def cards(rng: random.Random) -> list[str]:
    prefix, size, sizes = rng.choice(
        [
            ("4", 16, (4, 4, 4, 4)),
            ("4", 13, (4, 4, 5)),
            ("4", 19, (4, 4, 4, 4, 3)),
            (str(rng.randint(51, 55)), 16, (4, 4, 4, 4)),
            (str(rng.randint(2221, 2720)), 16, (4, 4, 4, 4)),
            (rng.choice(["34", "37"]), 15, (4, 6, 5)),
            ("6011", 16, (4, 4, 4, 4)),
            (str(rng.randint(3528, 3589)), 16, (4, 4, 4, 4)),
            (rng.choice(["36", "300", "305"]), 14, (4, 6, 4)),
            ("62", 16, (4, 4, 4, 4)),
            ("6759", 19, (6, 13)),
        ]
    )
    number = luhn(prefix + drawn(rng, DIGITS, size - 1 - len(prefix)))
    return [number, *(grouped(number, sizes, sign) for sign in (" ", "-", ".", "\u00a0", "\u2011"))]


def ibans(rng: random.Random) -> list[str]:
    country, bank, size = rng.choice(
        [
            ("DE", "", 18),
            ("GB", "NWBK", 14),
            ("FR", "", 23),
            ("NO", "", 11),
            ("MT", "MALT", 23),
            ("CH", "", 17),
            ("PL", "", 24),
        ]
    )
    account = bank + drawn(rng, DIGITS, size)
    for check in range(2, 99):
        number = f"{country}{check:02d}{account}"
        if remainder(number[4:] + number[:4]) == 1:
            break
    fours = " ".join(number[i : i + 4] for i in range(0, len(number), 4))
    return [number, fours, fours.replace(" ", "-"), fours.replace(" ", "\u00a0"), number.lower()]


def remainder(text: str) -> int:
    """Modulo 97 by piecewise division."""
    rest = 0
    for sign in text:
        for digit in sign if sign.isdigit() else str(string.ascii_uppercase.index(sign) + 10):
            rest = (rest * 10 + int(digit)) % 97
    return rest


def phones(rng: random.Random) -> list[str]:
    """Ways of writing that all show the same number."""
    area, local, line = (str(rng.randint(212, 299)), str(rng.randint(312, 999)), drawn(rng, DIGITS, 4))
    if area[1:] == "11" or local[1:] == "11":
        area, local = "408", "247"
    berlin = str(rng.randint(2000000, 9999999))
    london = f"20 7{drawn(rng, DIGITS, 3)} {drawn(rng, DIGITS, 4)}"
    manchester = f"{drawn(rng, '23456789', 3)} {drawn(rng, DIGITS, 4)}"
    paris = [drawn(rng, "123456789", 2) for _ in range(4)]
    mobile = drawn(rng, DIGITS, 8)
    choices = [
        [
            f"{area}-{local}-{line}", f"({area}) {local}-{line}", f"{area}.{local}.{line}", f"+1 {area} {local} {line}",
            f"1-{area}-{local}-{line}", f"+1{area}{local}{line}", f"({area}){local}-{line}",
            f"+1 ({area}) {local}-{line}",
            f"{area}\u2011{local}\u2011{line}", f"{area}/{local}-{line}", f"Tel: {area}{local}{line}",
            f"call me at {area} {local} {line}",
        ],
        [
            f"+49 30 {berlin}", f"+4930{berlin}", f"+49 (0)30 {berlin}", f"0049 30 {berlin}", f"+49-30-{berlin}",
            f"+49 (30) {berlin}",
        ],
        [f"+44 {london}", f"+44{london.replace(' ', '')}", f"+44 (0){london}", f"+44 (0) {london}"],
        [
            f"0161 {manchester}", f"(0161) {manchester}", f"0161-{manchester.replace(' ', '-')}",
            f"0161 {manchester.replace(' ', '')}",
        ],
        [f"06 {' '.join(paris)}", f"06.{'.'.join(paris)}", f"06-{'-'.join(paris)}", f"mobile 06{''.join(paris)}"],
        [f"+86 138 {mobile[:4]} {mobile[4:]}", f"+86138{mobile}", f"+86-138-{mobile[:4]}-{mobile[4:]}"],
        [f"电话138{mobile}", f"手机：138 {mobile[:4]} {mobile[4:]}", f"手机 138-{mobile[:4]}-{mobile[4:]}"],
        [f"+91 9{mobile[:4]} {mobile[4:]}1", f"+919{mobile}1"],
        [f"090-{mobile[:4]}-{mobile[4:]}9"[:-1], f"090 {mobile[:4]} {mobile[4:]}"],
        [f"phone number is 2{mobile[:2]}-{mobile[2:6]}", f"fax: 2{mobile[:2]} {mobile[2:6]}"],
    ]  # fmt: skip
    return rng.choice(choices)


def segment(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def keys(rng: random.Random) -> list[str]:
    def of(signs: str, size: int) -> str:
        return drawn(rng, signs, size)

    hexa = "0123456789abcdef"
    random_one = of(WORD, 30) + "a1B" + of(DIGITS, 3)
    password = "Tr" + of(DIGITS, 2) + "u&b" + of(string.ascii_letters, 3) + "4!x"
    body = "\n".join(of(WORD + "+/", 64) for _ in range(4))
    one_line = body.replace("\n", "\\n")
    pem = "-----{} " + rng.choice(["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "]) + "PRIVATE KEY-----"
    generators: list[Callable[[], list[str]]] = [
        lambda: ["AKIA" + of(string.ascii_uppercase + "234567", 16)],
        lambda: ["gh" + rng.choice("pousr") + "_" + of(WORD, 36)],
        lambda: ["github_" + "pat_" + of(WORD, 22) + "_" + of(WORD, 59)],
        lambda: ["xox" + rng.choice("bp") + f"-{of(DIGITS, 12)}-{of(DIGITS, 12)}-{of(WORD, 24)}"],
        lambda: ["sk_" + rng.choice(["live_", "test_"]) + of(WORD, 24)],
        lambda: ["AIza" + of(WORD + "_-", 34) + "x"],
        lambda: ["GOCSPX-" + of(WORD, 28)],
        lambda: ["glpat-" + of(WORD, 20)],
        lambda: ["sk-proj-" + of(WORD, 48)],
        lambda: ["hf_" + of(string.ascii_letters, 34)],
        lambda: ["npm_" + of(WORD, 36)],
        lambda: ["SG." + of(WORD, 22) + "." + of(WORD, 43)],
        lambda: [of("123456789", 9) + ":AA" + of(WORD, 33)],
        lambda: [".".join([segment({"alg": "HS256", "n": of(WORD, 3)}), segment({"sub": of(WORD, 8)}), of(WORD, 43)])],
        lambda: [
            f"{pem.format('BEGIN')}\n{body}\n{pem.format('END')}",
            f"{pem.format('BEGIN')}\\n{one_line}\\n{pem.format('END')}",
        ],
        lambda: [
            f"api_key = {random_one}", f"API key: {random_one}", f"X-Auth-Token: {random_one}",
            f'"secret":"{random_one}"',
        ],
        lambda: [f"token {of(hexa, 31)}a7"],
        lambda: [f"password: {password}", f"passwd={password}", f"the password is {password}", f"pwd := {password}"],
        lambda: [f"postgres://ann:{password.replace('&', '')}@db.internal/x"],
    ]  # fmt: skip
    return rng.choice(generators)()


def ssns(rng: random.Random) -> list[str]:
    area = rng.choice([rng.randint(1, 665), rng.randint(667, 899)])
    parts = f"{area:03d}", f"{rng.randint(1, 99):02d}", f"{rng.randint(1, 9999):04d}"
    bare = "".join(parts)
    return [
        "-".join(parts), "\u2011".join(parts), f"SSN {bare}", f"SSN: {' '.join(parts)}",
        f"social security number is {bare}",
    ]  # fmt: skip


def nhs_numbers(rng: random.Random) -> list[str]:
    """Weighted from the other end: the whole number, check digit with weight 1, is a multiple of 11."""
    while True:
        number = drawn(rng, DIGITS, 10)
        if sum(int(sign) * (10 - i) for i, sign in enumerate(number)) % 11 == 0 and len(set(number)) > 1:
            break
    three = grouped(number, (3, 3, 4), " ")
    return [f"NHS {number}", f"NHS number: {three}", f"nhs no. {three.replace(' ', '-')}", f"NHS Number ({number})"]


def record_numbers(rng: random.Random) -> list[str]:
    letters, digits = rng.choice(["", "A", "MH"]), drawn(rng, DIGITS, 7)
    number = f"{letters}{digits}"
    return [
        f"MRN {number}", f"MRN: {number}", f"mrn#{number.lower()}", f"patient ID = {number}",
        f"Medical record number is {number}", f"hospital no. {letters}{digits[:3]}-{digits[3:]}",
    ]  # fmt: skip


def births(rng: random.Random) -> list[str]:
    month, day, year = rng.randint(1, 12), rng.randint(13, 28), rng.randint(1920, 2019)
    name = MONTHS[month - 1]
    return [
        f"born {year}-{month:02d}-{day}", f"DOB: {month:02d}/{day}/{year}", f"DOB {day}/{month}/{year}",
        f"date of birth: {day}.{month:02d}.{year}", f"born on {day} {name} {year}", f"was born {name} {day}, {year}",
        f"D.O.B. {day}-{name[:3]}-{year}", f"birthday: the {day}th of {name} {year}", f"geb. {day}.{month}.{year}",
    ]  # fmt: skip


PLANTED: dict[str, Callable[[random.Random], list[str]]] = {
    "email": emails,
    "card": cards,
    "iban": ibans,
    "phone": phones,
    "key": keys,
    "ssn": ssns,
    "nhs": nhs_numbers,
    "mrn": record_numbers,
    "dob": births,
}


def planted(kind: str, count: int, seed: int) -> Iterator[list[str]]:
    """For each of ``count`` secrets of a kind, texts that hold it, each written in another way."""
    rng = random.Random(seed)
    for _ in range(count):
        forms = PLANTED[kind](rng)
        yield [rng.choice(AROUND).format(form) for form in forms]


def bad_luhn(rng: random.Random, size: int) -> str:
    number = luhn("4" + drawn(rng, DIGITS, size - 2))
    return number[:-1] + str((int(number[-1]) + rng.randint(1, 9)) % 10)


def near_misses(count: int, seed: int) -> Iterator[str]:
    """Texts without any secret."""
    rng = random.Random(seed)

    def n(low: int, high: int) -> int:
        return rng.randint(low, high)

    hexa = "0123456789abcdef"
    generators: list[Callable[[], str]] = [
        lambda: bad_luhn(rng, 16),
        lambda: grouped(bad_luhn(rng, 16), (4, 4, 4, 4), rng.choice(" -")),
        lambda: luhn("9" + drawn(rng, DIGITS, 14)),  # no issuer has it
        lambda: f"{n(1900, 2099)}-{n(1, 12):02d}-{n(1, 28):02d}",
        lambda: f"{n(1900, 2099)}-{n(1, 12):02d}-{n(1, 28):02d}T{n(0, 23):02d}:{n(0, 59):02d}:00+0{n(0, 9)}00",
        lambda: f"{n(1, 28):02d}.{n(1, 12):02d}.{n(1900, 2099)}",
        lambda: f"{n(1, 12):02d}/{n(1, 28):02d}/{n(1900, 2099)} {n(10, 23)}:{n(10, 59)}",
        lambda: f"{n(1, 9):02d}.{n(1, 12):02d}.{n(1900, 2099)} {n(10, 23)}.{n(10, 59)}",
        lambda: f"from {n(1900, 1999)}-{n(2000, 2099)} to {n(2000, 2030)}",
        lambda: f"v{n(0, 30)}.{n(0, 30)}.{n(0, 30)}",
        lambda: f"version {n(0, 9)}.{n(10, 30)}.{n(100, 3000)}-rc{n(1, 9)}",
        lambda: f"commit {drawn(rng, hexa, 40)}",
        lambda: f"{drawn(rng, hexa, 40)} and {drawn(rng, hexa, 7)}",
        lambda: f"the key of commit {drawn(rng, hexa, 40)}",
        lambda: f"sha256:{drawn(rng, hexa, 64)}",
        lambda: str(UUID(int=rng.getrandbits(128))),
        lambda: f"{n(1, 255)}.{n(0, 255)}.{n(0, 255)}.{n(0, 255)}",
        lambda: f"0{n(10, 99)}.{n(100, 255)}.{n(100, 255)}.{n(100, 255)}",
        lambda: f"http://{n(1, 255)}.{n(0, 255)}.{n(0, 255)}.{n(0, 255)}:{n(1000, 65535)}/",
        lambda: f"${n(1, 999)},{n(100, 999)},{n(100, 999)}.{n(10, 99)}",
        lambda: f"{n(1, 99)} {n(100, 199)} {n(100, 999)}.00 €",
        lambda: f"0.{drawn(rng, DIGITS, 12)} and -{n(1, 9)}.{drawn(rng, DIGITS, 10)}e-05",
        lambda: f"3.{drawn(rng, DIGITS, 15)}",
        lambda: f"order {drawn(rng, '123456789', 9)}, id {drawn(rng, '123456789', 12)}",
        lambda: f"time {n(1_500_000_000, 1_799_999_999)}",
        lambda: f"number 00{drawn(rng, DIGITS, 9)}",
        lambda: f"ISBN 978-{n(0, 9)}-{n(10, 99)}-{n(100000, 999999)}-{n(0, 9)}",
        lambda: f"{n(900, 999)}-{n(10, 99)}-{n(1000, 9999)}",  # no area of a social security number
        lambda: f"{n(100, 665)}-00-{n(1000, 9999)}, {n(100, 665)}-{n(10, 99)}-0000, 666-{n(10, 99)}-{n(1000, 9999)}",
        lambda: f"SSN 000{n(10, 99)}{n(1000, 9999)} or {n(100, 665)} {n(10, 99)} {n(1000, 9999)}",
        lambda: f"NHS hospital, ward {n(1, 99)}, order 9434765919",
        lambda: f"NHS number 943476591{n(0, 8)}",  # the check digit is 9
        lambda: f"born in {n(1900, 2019)}, stillborn {n(1, 28)}.{n(1, 12)}.{n(1900, 2019)}",
        lambda: f"born 31.02.{n(1900, 2019)}, DOB {n(1900, 2019)}-13-{n(10, 28)}",
        lambda: f"Bornholm {n(1900, 2019)}-{n(10, 12)}-{n(10, 28)}; admitted {n(1, 28)} March {n(1900, 2019)}",
        lambda: f"MRN 12, the patient is {n(1, 99)}, chart {n(1, 9)}, patient {n(10000, 99999)}",
        lambda: f"@{drawn(rng, string.ascii_lowercase, 8)} and @{drawn(rng, string.ascii_lowercase, 5)}.{n(1, 9)}",
        lambda: f"git@github.com:{drawn(rng, string.ascii_lowercase, 8)}/repo.git",
        lambda: f"ssh ann@host{n(1, 99)} and root@localhost",
        lambda: f"icon@{n(2, 3)}x.png, react@{n(10, 20)}.{n(0, 9)}.{n(0, 9)}, getty@tty{n(1, 9)}.service",
        lambda: f"import {drawn(rng, string.ascii_lowercase, 5)} # @app.route('/x{n(1, 99)}')",
        lambda: f"key: SomeLongClassName{drawn(rng, string.ascii_lowercase, 12)}",
        lambda: f"token: feature_flag_{n(1, 9)}_is_enabled_for_all_users",
        lambda: "the password is incorrect, and your secret is safe",
        lambda: "password=<your password here>, password: ${DB_PASSWORD1}, password = os.environ['DB_PASS1']",
        lambda: "postgres://user:password@localhost/db and https://example.org:8080/a@b",
        lambda: f"DE{n(10, 99)} 3704 0044 0532 0130",  # too short for an account number
        lambda: f"XX{n(10, 99)}{drawn(rng, DIGITS, 18)}",
        lambda: " ".join(str(n(1, 999)) for _ in range(6)),
        lambda: f"{n(1, 9)} x {n(10, 99)} mm, {n(1000, 9999)}/{n(1000, 9999)} points, {n(100, 999)}th",
        lambda: f"+{n(1, 9)}, +{n(10, 99)} % and +{n(100, 999)}.{n(10, 99)}",
        lambda: f"C++{n(11, 23)}, UTC+0{n(1, 9)}:00, {n(0, 23):02d}:{n(0, 59):02d}:{n(0, 59):02d}.{n(100, 999)}",
        lambda: f"arXiv:{n(10, 25)}{n(1, 12):02d}.{n(10000, 99999)}",
        lambda: f"doi 10.{n(1000, 9999)}/{n(100000, 999999)}.{n(1000000, 9999999)}",
        lambda: f"lat {n(10, 89)}.{drawn(rng, DIGITS, 6)}, {n(10, 89)}.{drawn(rng, DIGITS, 6)}",
    ]  # fmt: skip
    for i in range(count):
        yield rng.choice(AROUND[:8]).format(generators[i % len(generators)]())
