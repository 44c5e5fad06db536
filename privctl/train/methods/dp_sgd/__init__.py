"""DP-SGD (Abadi et al. 2016): random batches, clipped per-example gradients, and noise on their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privctl.train.methods.dp_sgd.checks import check
from privctl.train.methods.dp_sgd.settings import (
    DpSgdSettings,
    adaptive_of,
    bands_of,
    batches_of,
    buffers_of,
    canaries_of,
    group_of,
    largest_batch_of,
    per_draw_of,
    search_of,
    shared_of,
)
from privctl.train.runs.method import TrainingMethod

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.session import Session

__all__ = ["LEARNING_RATE", "METHOD", "TUNING", "DpSgdSettings"]

TUNING = (
    "the guarantee is for this one run, given that it came to its end: settings chosen by looking at other runs on the "
    "same data cost more"
)
LEARNING_RATE = (
    "Highest learning rate.  [default: 5e-4, up to 1e-3 for batches above 64; without Adam, times batch / clip norm]"
)


def _run(job: TrainingJob, session: Session) -> PrivacyReport | None:
    from privctl.train.runs.canary_run import with_canaries
    from privctl.train.runs.gradient_training import NO_HOOKS, train_by_gradients

    return train_by_gradients(job, session, with_canaries(job, NO_HOOKS))


METHOD = TrainingMethod(
    name="dp-sgd",
    help="""Train MODEL with an (epsilon, delta) guarantee: clipped gradients, random batches, noise.

    MODEL is a Hugging Face directory, a .safetensors file in one, or an adapter's directory. Ctrl-C saves the state,
    and --resume continues from it.

    \b
    Example:
      privctl retrain dp-sgd model/ --data train.jsonl --held-out test.jsonl --epsilon 8 \\
          --epochs 3 --batch-size 512 -o private/
    \f
    The noisy gradients go to any --optimizer: sgd makes it DP-SGD, adam makes it DP-Adam, and the default, adamw, is
    DP-Adam with decoupled weight decay.

    A directory with a config.json and no weights is trained from scratch. Ctrl-C ends a run after the current step; its
    state is kept in OUTPUT.run until the run is complete.

    Before the output gets its final name, it is loaded by transformers alone and compared with the trained network.
    Name the classes of a classifier with --labels: names collected from the private data void the guarantee. Batch
    normalisation mixes examples and is refused. With --norm frozen it keeps its running statistics, which must be
    public, like the starting weights. --convert batch-norm first moves them into the layer's scales and shifts, and
    leaves the statistics of a new layer, 0 and 1. The architecture does not change, because no config.json can replace
    batch normalisation by group normalisation. So transformers loads the model with the accuracy that the report
    states.

    If MODEL is a LoRA adapter's directory, as peft writes it, the base is frozen, and the output is an adapter. With
    --lora-rank, new adapters are trained and merged into the weights, or written separately with --save-adapter.

    With --bands, noise is correlated between steps (matrix factorization). This leaves less noise in the weights if
    batches are large or epochs few. The state of an unfinished run then holds the noise of that many steps, each twice
    the size of the gradients.

    With --buffers, noise is correlated over all steps by a few buffers (BLT), for runs of so many steps that bands
    would take too much memory. Every record is used once an epoch, in an order that does not change, and there is no
    amplification by sampling. The state of an unfinished run holds each buffer, which is twice the size of the
    gradients.

    With --largest-batch, a batch above that size is truncated to it, uniformly at random. This bounds the longest step,
    as steps compiled for one shape require. A record can then displace another one, and epsilon covers that. A limit
    five standard deviations above the expected size costs next to nothing; three cost far more. --dry-run shows the
    cost.

    With --records-per-draw, a user that a step draws (--unit) takes part with several records, and the mean of their
    gradients is clipped as one. Users are protected at the same epsilon, and their gradients vary less.

    With --search, settings are chosen by results, and the guarantee covers this choice. The number of runs and the
    settings of each are drawn first. The runs are made in OUTPUT.search, the best by held-out loss is released, and the
    others are deleted. The choice depends on the held-out examples, so they are assumed to be public, and no guarantee
    covers them. Keep the number of runs, and how long the search took, secret. `privctl account --mechanism search`
    shows the cost.

    With --target-unclipped-quantile, the clip norm adapts to the gradients (adaptive clipping), and --clip-norm is only
    its initial value. Each step then also releases how many gradients of its batch are not clipped, with noise. Epsilon
    covers both; in return, the noise on the sum rises by a few percent at most. The report holds the clip norms.

    With --shared-records, the field of --unit may hold a list of users (a JSON array, also in the cell of a table, or a
    list in Parquet and Arrow). Each user is then protected together with all records that name them. With all, every
    record is used, and neighbours differ by a user with all their records. With the other rules, at most
    --max-records-per-user of a user's records are used. They protect what these records contain, while which users each
    record names is assumed to be public: without a user, other records might have been chosen. --dry-run shows what
    each rule keeps.

    With --public, each step adds --public-weight times the mean gradient of public records to the noisy private one.
    This costs no epsilon: the public gradient is neither clipped nor noised, and no guarantee covers those records. A
    record that is in both files is refused, because it cannot be both private and public; --public-overlap keep accepts
    it. Training on public records first (retrain plain) helped more where both were measured, at the same cost, and a
    pass mixed in helped less than one before.

    With --gradient-canaries, the run is an audit of itself: `privctl audit canaries` bounds epsilon from below by what
    was observed of the canaries, and tests the mechanism that the report states. Not with --secrets or --search.

    With --secrets, every record is drawn with the probability that the plan gives. The report states what an attacker
    may still learn about each secret, in addition to the guarantee for one record. The plan sets the steps, the
    expected batch size and the least noise; --noise-multiplier or --epsilon may require more noise.

    \b
    More examples:
      privctl retrain dp-sgd model/ --data train.jsonl --task text-classification \\
          --labels 0,1 --epsilon 8 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --batch-size 512 --bands 2 \\
          -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --epochs 10 \\
          --batch-size 512 --buffers 3 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --batch-size 512 \\
          --largest-batch 626 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --held-out public.jsonl --epsilon 8 \\
          --search 'learning-rate=1e-4,3e-4,1e-3 clip-norm=0.5,1' --expected-runs 5 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 \\
          --target-unclipped-quantile 0.5 -o private/
      privctl retrain dp-sgd model/ --data visits.jsonl --epsilon 8 --unit patient \\
          --records-per-draw 4 -o private/
      privctl retrain dp-sgd model/ --data mails.jsonl --epsilon 8 --unit people \\
          --max-records-per-user 4 --shared-records greedy -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 2 --public public.jsonl \\
          --public-weight 0.5 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --batch-size 512 --bands 2 \\
          --gradient-canaries 5001 -o audited/
      privctl retrain dp-sgd base/ --data train.jsonl --epsilon 8 --lora-rank 8 --save-adapter \\
          -o adapter/
      torchrun --nproc-per-node 2 -m privctl retrain dp-sgd model/ --data train.jsonl \\
          --epsilon 8 -o private/
      privctl secrets plan train.jsonl --secrets secrets.jsonl --steps 1000 --batch-size 64 \\
          -o plan.safetensors
      privctl retrain dp-sgd model/ --data train.jsonl --secrets plan.safetensors -o private/
    """,
    takes=("clipping", "passes", "schedule", "budget", "secrets", "public", "convert", "adapters"),
    helps={"learning_rate": LEARNING_RATE},
    shards=True,
    noised=True,
    private=True,
    guaranteed=True,
    warning=TUNING,
    settings=DpSgdSettings,
    sampled=lambda _: True,
    batches=batches_of,
    bands=bands_of,
    buffers=buffers_of,
    group=group_of,
    shared=shared_of,
    largest_batch=largest_batch_of,
    per_draw=per_draw_of,
    search=search_of,
    adaptive=adaptive_of,
    canaries=canaries_of,
    check=check,
    run=_run,
)
