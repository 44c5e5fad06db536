"""``privctl secrets scan`` on short records, against running each regular expression one by one. Whole processes."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.common import Variant, execute, interleave, peak, publish, ratio, summary

#: Records of some 25 words, one in ten with something to find in it, and one in ten with dates and prices.
MAKE = """
import json, random, sys
path, records, literals = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(0)
words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(30_000)]
listed = sorted({f"{rng.choice(words).title()} {rng.choice(words).title()}" for _ in range(literals)})
with open(path + ".list", "w") as stream:
    stream.write("\\n".join(listed) + "\\n")
n = rng.randint
with open(path, "w") as stream:
    for _ in range(records):
        text = [words[int(rng.paretovariate(0.7)) % len(words)] for _ in range(n(8, 40))]
        chance = rng.random()
        if chance < 0.04:
            text.append(f"mail ann.{n(1, 20_000)}@example{n(1, 9)}.org")
        elif chance < 0.08:
            text.append(f"call 408-{n(212, 999)}-{n(1000, 9999)}")
        elif chance < 0.09:
            text.append(f"key {rng.getrandbits(128):032x}")
        elif chance < 0.1:
            text.append(f"{rng.choice(listed)} came")
        elif chance < 0.2:
            text.append(f"on 20{n(10, 29)}-{n(10, 12)}-{n(10, 28)} paid {n(100, 99999)}.{n(10, 99)}")
        stream.write(json.dumps({"text": " ".join(text)}) + "\\n")
"""

NAIVE = r"""
import json, re, sys
from collections import defaultdict
from privctl.secrets.scan.kinds.keys.formats import FORMATS

patterns = {
    "email": r"\b[\w.%+-]+@[\w-]+(?:\.[\w-]+)+\b",
    "card": r"\b(?:\d[ -]?){12,18}\d\b",
    "iban": r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}\b",
    "phone, international": r"(?:\+|\b00)[1-9](?:[ ().-]{0,2}\d){6,14}\b",
    "phone, american": r"(?:\(\d{3}\) ?|\b\d{3}[ .-])\d{3}[ .-]\d{4}\b",
    "phone, national": r"\b0[1-9]\d{0,4}(?:[ ./-]\d{2,8}){1,4}\b",
    "secret": r"(?i)(?:key|token|secret|password|auth)\W{0,20}[\w+/-]{16,}",
    "key block": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    **FORMATS,
}
compiled = {name: re.compile(pattern) for name, pattern in patterns.items()}
found = defaultdict(list)
with open(sys.argv[1]) as stream:
    for number, line in enumerate(stream):
        text = json.loads(line)["text"]
        for name, pattern in compiled.items():
            for match in pattern.finditer(text):
                found[name, match[0]].append(number)
with open(sys.argv[2], "w") as stream:
    for (name, value), records in found.items():
        stream.write(json.dumps({"kind": name, "value": value, "records": records}) + "\n")
"""

NAIVE_LIST = r"""
import json, re, sys
from collections import defaultdict

with open(sys.argv[1] + ".list") as stream:
    pattern = re.compile(r"\b(?:" + "|".join(map(re.escape, stream.read().split("\n")[:-1])) + r")\b")
found = defaultdict(list)
with open(sys.argv[1]) as stream:
    for number, line in enumerate(stream):
        for match in pattern.finditer(json.loads(line)["text"]):
            found[match[0]].append(number)
with open(sys.argv[2], "w") as stream:
    for value, records in found.items():
        stream.write(json.dumps({"value": value, "records": records}) + "\n")
"""
#: Variant -> the one that it is compared with.
_BASES = {
    "scan": "each expression by itself",
    "scan, listed texts": "listed texts as one expression",
    "scan, rare words": "scan",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """This bench's flags."""
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--listed-records", type=int, default=10_000, help="records for listed texts")
    parser.add_argument("--listed", type=int, default=10_000, help="listed texts")
    parser.add_argument("--rounds", type=int, default=3)


def main(options: argparse.Namespace) -> None:
    """Measure and publish."""
    with tempfile.TemporaryDirectory(prefix="bench-secrets-") as name:
        folder = Path(name)
        many, few = folder / "many.jsonl", folder / "few.jsonl"
        for path, records in ((many, options.records), (few, options.listed_records)):
            execute([sys.executable, "-c", MAKE, str(path), str(records), str(options.listed)])
        output = folder / "out.jsonl"
        scan = [sys.executable, "-m", "privctl", "secrets", "scan", "-o", str(output), "--force", "--quiet"]
        listed = ["--kinds", "none", "--literals", f"{few}.list"]
        rare = ["--rare-words", "100", "--rare-least", "50"]
        variants = {
            "scan": Variant([*scan, str(many)]),
            "scan, rare words": Variant([*scan, str(many), *rare]),
            "each expression by itself": Variant([sys.executable, "-c", NAIVE, str(many), str(output)]),
            "scan, listed texts": Variant([*scan, str(few), *listed]),
            "listed texts as one expression": Variant([sys.executable, "-c", NAIVE_LIST, str(few), str(output)]),
        }
        runs = interleave(variants, options.rounds)
    data: dict[str, Any] = {}
    rows = []
    for variant, of_variant in runs.items():
        records = options.listed_records if "listed" in variant else options.records
        each = data[variant] = {**summary(of_variant), "records": records}
        each["records_per_cpu_s"] = records / each["cpu_s"]
        base = _BASES.get(variant)
        if base is not None:
            each["base"], each["to_base"] = base, ratio(runs, variant, base)
        rows.append(
            [
                variant, str(records), f"{each['median_s']:.2f}", f"{each['cpu_s']:.2f}",
                f"{each['records_per_cpu_s']:.0f}", peak(each["peak_mib"]),
                "-" if base is None else f"{each['to_base']:.3f} x {base}",
            ]
        )  # fmt: skip
    headings = ["variant", "records", "median s", "CPU s", "records / CPU s", "peak MiB", "time"]
    settings = {name: getattr(options, name) for name in ("records", "listed_records", "listed", "rounds")}
    publish("secrets-scan", headings, rows, {**settings, "variants": data}, options.output)
