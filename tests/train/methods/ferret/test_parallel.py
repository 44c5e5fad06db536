"""Two processes publish what one does, and add noise once; all that crosses between them are derivatives."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from tests.forked import Forked
from tests.train.methods.ferret.support import trainer, weights

#: What each process runs; the leading one prints what was published, the weights, how many numbers crossed at most, and
#: what was published of noise alone.
SCRIPT = """
import json, torch
from privctl.parallel import start_workers
from privctl.randomness import NoiseSource
from privctl.train.methods.ferret.publish import NoisySums
from privctl.train.methods.ferret.settings import Publish
from tests.train.methods.ferret.support import BATCH, trainer, weights

torch.set_num_threads(1)
with start_workers(torch.device("cpu")) as workers:
    crossed, reduce = [], torch.distributed.all_reduce
    def counting(tensor, *more):
        crossed.append(tensor.numel())
        return reduce(tensor, *more)
    torch.distributed.all_reduce = counting
    made = trainer(40, chance=0.5, workers=workers)
    outcome = made.run()
    mine, most = weights(made), max(crossed)
    same = mine.clone()
    workers.all_reduce([same])
    assert torch.equal(same, workers.size * mine), "the processes' weights differ"
    noise = NoisySums(noise_multiplier=2.0, clip_norm=0.5, batch_size=BATCH, shown=Publish.VALUE, source=NoiseSource())
    quiet = trainer(350, chance=0.5, publisher=noise, workers=workers)
    quiet.source.task.rows *= 0.0
    for parameter in quiet.network.parameters():
        parameter.data.zero_()
    quiet.rule = type(quiet.rule)(steps=350, learning_rate=1e-12)
    heard = quiet.run()
    if workers.is_main:
        print(json.dumps([outcome.amounts.tolist(), mine.tolist(), most, heard.amounts.tolist()]), flush=True)
"""


def train(processes: int, folder: Path, forked: Forked) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """What the leading process prints."""
    script = folder / "worker.py"
    script.write_text(SCRIPT)
    ended = forked.together(processes, [], script=str(script))
    for process in ended:
        assert process.code == 0, process.errors[-2000:]
    amounts, found, crossed, noise = json.loads(ended[0].out)
    return torch.tensor(amounts), torch.tensor(found), crossed, torch.tensor(noise)


def test_two_processes_do_what_one_does_and_add_its_noise_once(tmp_path: Path, forked: Forked) -> None:
    one = trainer(40, chance=0.5)
    outcome = one.run()
    published, found, crossed, noise = train(2, tmp_path, forked)
    assert torch.equal(published, outcome.amounts.float())
    assert torch.equal(found, weights(one))
    assert crossed <= 4  # a number for each of four groups, never a gradient
    stated = 2.0 * 0.5 / 5
    error = stated / math.sqrt(2 * len(noise))
    deviation = float(noise.double().std())
    assert len(noise) > 550
    assert abs(deviation - stated) < 5 * error
    # Noise from every process would be sqrt(2) times that.
    assert abs(deviation - stated * math.sqrt(2)) > 10 * error
