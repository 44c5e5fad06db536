"""Scan for secrets by Ray tasks, one for each shard, and merge their results.

    python examples/scale/scan_with_ray.py train.jsonl --shards 64 --folder parts/ -o secrets.jsonl -- --rare-words 5

The options after ``--`` are passed to every ``privctl secrets scan``. The data and ``--folder`` must be on a file
system that all machines of the cluster share. Parts that exist already are not made again, so an interrupted run can be
continued. Needs ``pip install ray``. On a cluster, start it by ``ray job submit``, or set RAY_ADDRESS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Scan all shards, then merge the parts. Returns the exit code of ``privctl secrets merge``."""
    arguments = _arguments()
    import ray  # type: ignore[import-not-found]

    ray.init(ignore_reinit_error=True)
    folder = arguments.folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = [str(path.absolute()) for path in arguments.data]
    task = ray.remote(num_cpus=1)(scan_shard)
    count = arguments.shards
    tasks = [task.remote(data, shard, count, str(folder), arguments.options) for shard in range(1, count + 1)]
    parts = ray.get(tasks)
    output = [] if arguments.output is None else ["-o", str(arguments.output)]
    return subprocess.run([*_PRIVCTL, "merge", *parts, *output], check=False).returncode  # noqa: S603


def scan_shard(data: list[str], shard: int, count: int, folder: str, options: list[str]) -> str:
    """Scan shard ``shard`` (from 1) of ``count``, and return the path of its part.

    Raises RuntimeError with privctl's message where it fails.
    """
    part = Path(folder, f"part-{shard}-of-{count}.jsonl.gz")
    if not part.exists():  # a part that exists is complete
        call = [*_PRIVCTL, "scan", *data, "--shard", f"{shard}/{count}", "-o", str(part), "--quiet", *options]
        done = subprocess.run(call, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"shard {shard} of {count}: {done.stderr.strip()}")
    return str(part)


_PRIVCTL = [sys.executable, "-m", "privctl", "secrets"]


def _arguments() -> argparse.Namespace:
    given, options = sys.argv[1:], []
    if "--" in given:
        place = given.index("--")
        given, options = given[:place], given[place + 1 :]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="folder for the parts, which hold secrets")
    parser.add_argument("-o", "--output", type=Path, help="book of secrets to write (default: none)")
    arguments = parser.parse_args(given)
    arguments.options = options
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
