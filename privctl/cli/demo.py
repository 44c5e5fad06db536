"""``privctl demo``: every step on a small model, in a minute or two."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.numbers import SEED
from privctl.cli.options import PATH, common, show
from privctl.domain.mechanism import Calibration, Regime

if TYPE_CHECKING:
    from privctl.demo.run import DemoModel
    from privctl.show.text.demo import DemoRow


@click.command()
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="New folder for all models, reports and records.  [default: privctl-demo, or the next free privctl-demo-N]",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the synthetic records.")
@common
@click.pass_context
def demo(ctx: click.Context, output: Path | None, seed: int, as_json: bool, quiet: bool) -> None:
    """Train a small GPT-2 on synthetic records, add noise at several epsilons, train one privately, and attack each.

    Needs no network and no files. Prints one table: epsilon claimed, epsilon that follows, noise, perplexity, and how
    well an attacker distinguishes members from non-members. Then it verifies every report, runs privctl gate on two
    models, of which one passes and one fails, and writes one page about all of it. All files stay in one folder; the
    exit code is that of privctl verify.

    \b
    Example:
      privctl demo -o /tmp/privctl-demo
    """
    from privctl.demo.check import check
    from privctl.demo.decide import POLICY_NAME, judge_models, models_to_judge, write_page
    from privctl.demo.run import run_demo
    from privctl.reports.codec import encode
    from privctl.reports.files import read_report
    from privctl.show.progress import note, progress
    from privctl.show.text.demo import demo_table, gate_text, verification_text
    from privctl.storage.atomic import fresh_folder, new_folder

    output = output or fresh_folder(Path("privctl-demo"))
    new_folder(output)
    shown = partial(progress, quiet=quiet)
    chapters = run_demo(output, seed, shown)
    checked = check(output, shown)
    judged = judge_models(output, models_to_judge(chapters), shown)
    page = write_page(output, chapters, shown)
    if as_json:
        reports = [encode(read_report(path)).rstrip("\n") for path in sorted(output.glob("*.report.json"))]
        show("[" + ",\n".join(reports) + "]\n", as_json=True)
        ctx.exit(checked.exit_code)
    delta = next(g.delta for chapter in chapters for g in chapter.guarantees)
    show(demo_table([_row(chapter) for chapter in chapters], delta))
    show("\n")
    show(
        verification_text(
            checked.reports, checked.proved, checked.claims_refuted, [path.name for path in checked.failed]
        )
    )
    show(gate_text(judged, output / POLICY_NAME))
    show(f"The page of all this: {page}\n")
    note(
        f"everything is in {output}; next: open the page, or look at a model: privctl inspect {chapters[0].model}",
        quiet=quiet,
    )
    ctx.exit(checked.exit_code)


def _row(chapter: DemoModel) -> DemoRow:
    from privctl.demo.run import guarantee_for_any_loss, guarantee_under
    from privctl.show.text.demo import DemoRow

    published = chapter.target is not None and chapter.target.calibration is Calibration.DP_WEIGHTS
    return DemoRow(
        name=chapter.model.name,
        claimed=chapter.target.epsilon if chapter.target and published else None,
        convex=guarantee_under(chapter, Regime.CONVEX),
        any_loss=guarantee_for_any_loss(chapter),
        noise_stddev=chapter.noise_stddev,
        perplexity=chapter.perplexity,
        auc=chapter.auc,
    )
