"""``python -m tests.bench NAME`` measures one thing, prints a table and writes JSON."""

from __future__ import annotations

import argparse
import importlib

#: Name -> (module with ``arguments`` and ``main``, one line for the help).
BENCHES = {
    "account": ("tests.bench.account", "epsilon and calibration, against dp-accounting and Opacus"),
    "attacks": ("tests.bench.attacks", "what each membership attack finds in models trained plainly and privately"),
    "audit": ("tests.bench.audit", "scoring and extraction, against one text at a time and generate()"),
    "audit-bounds": ("tests.bench.audit_bounds", "lower bounds on epsilon from one run, by every theorem"),
    "audit-null": ("tests.bench.audit_null", "whole audits in which nothing is to be found, and the power to find"),
    "audit-peers": ("tests.bench.audit_peers", "membership attacks of several projects on the same targets"),
    "audit-power": ("tests.bench.audit_power", "how often tests find a weak trace of membership in made-up scores"),
    "audit-precision": ("tests.bench.audit_precision", "scores in bfloat16: their time, and what attacks lose by it"),
    "audit-repeats": ("tests.bench.audit_repeats", "how often a test errs where records repeat, by which are left out"),
    "audit-wide": ("tests.bench.audit_wide", "time of membership attacks of several projects on models 512 wide"),
    "adaptive-clipping": ("tests.bench.adaptive_clipping", "accuracy from wrong first clip norms, fixed and adaptive"),
    "banded": ("tests.bench.banded", "held-out accuracy by correlated noise, against DP-SGD of the same epsilon"),
    "canary-gradients": ("tests.bench.canary_gradients", "what canary gradients certify, by steps and their number"),
    "canary-starts": ("tests.bench.canary_starts", "what canaries show after private training, by where it begins"),
    "clipping-passes": ("tests.bench.clipping_passes", "micro-batches clipped in one backward pass, against two"),
    "contribution": ("tests.bench.contribution", "architectures of transformers under the self-test of contributions"),
    "coverage": ("tests.bench.coverage", "architectures of transformers: whose clipped gradients are right"),
    "device": ("tests.bench.device", "what a private step asks of a GPU, counted on a processor"),
    "dp-sgd": ("tests.bench.dp_sgd", "private training steps, against non-private ones, Opacus and FastDP"),
    "dp-sgd-processes": ("tests.bench.dp_sgd_processes", "training steps with freed memory kept and not, by process"),
    "dpquant": ("tests.bench.dpquant", "what rounding layers costs, and a measurement of them, against private steps"),
    "zeroth-order": ("tests.bench.zeroth_order", "a step of DP-ZO beside one of DP-SGD and a forward pass"),
    "extraction-null": ("tests.bench.extraction_null", "extraction audits of models that saw no record"),
    "families": ("tests.bench.families", "private training steps of many architectures, against non-private ones"),
    "ferret": ("tests.bench.ferret", "directional derivatives by every method and whole FERRET runs, against steps"),
    "finetune": ("tests.bench.finetune", "held-out loss by FERRET and DPQuant, against DP-SGD of the same epsilon"),
    "first-output": ("tests.bench.first_output", "how long each job takes to its first line and to its end"),
    "fused-learners": ("tests.bench.fused_learners", "the fused score by least squares, against boosted trees"),
    "gradient-noise": ("tests.bench.gradient_noise", "noise on gradients by each cipher, against torch.randn"),
    "inversion": ("tests.bench.inversion", "images from the weights of classifiers, beside held-out images"),
    "layers": ("tests.bench.layers", "clipped gradients of layers by their rules, against running each again"),
    "memory": ("tests.bench.memory", "what training large models takes of a GPU, by exact bytes of tensors"),
    "min-k-shares": ("tests.bench.min_k_shares", "Min-K%%++ of several shares: the best chosen on others, or weighted"),
    "noise": ("tests.bench.noise", "privctl noise on a large file, against cp and the naive way"),
    "noise-pieces": ("tests.bench.noise_pieces", "what privctl noise does to each byte, piece by piece on one core"),
    "planted-leaks": ("tests.bench.planted_leaks", "leaks that one membership attack finds and the basic ones miss"),
    "public-mixing": ("tests.bench.public_mixing", "private fine-tuning with public records, mixed in or first"),
    "secrets": ("tests.bench.secrets", "plans of protection at scale, against HiGHS and dp-accounting"),
    "secrets-scan": ("tests.bench.secrets_scan", "privctl secrets scan, against each expression by itself"),
    "shadow": ("tests.bench.shadow", "shadow models trained together, against one after the other"),
    "startup": ("tests.bench.startup", "how long --help takes, against Python alone"),
    "verify": ("tests.bench.verify", "privctl verify of a noised file, against reading both files"),
}


def main() -> None:
    """Parse the command line and run the bench it names."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    modules = {}
    for name, (module, line) in BENCHES.items():
        modules[name] = importlib.import_module(module)
        sub = names.add_parser(name, help=line, description=line)
        modules[name].arguments(sub)
        sub.add_argument("--output", help="where the JSON goes (default: tests/bench/results/NAME.json)")
    options = parser.parse_args()
    modules[options.name].main(options)


if __name__ == "__main__":
    main()
