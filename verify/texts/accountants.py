"""The accountants of guarantees, as a closed list. Standard library only, like the gate.

Those of a training method are listed in its module in ``verify.methods``.
"""

from __future__ import annotations

_GRID = "privacy loss distribution \\(privctl\\), connect the dots"
_GAUSSIAN = r"analytic Gaussian \(Balle(-| and )Wang 2018\), exact"
RENYI = "Renyi divergences, Canonne, Kamath and Steinke 2020"
_FANO = (
    "KL divergence (from the secret's absence|between two values with opposite contributions), exact integral; "
    "Fano's inequality"
)
TIGHT = f"{_GRID}|{_GAUSSIAN}"
_POSTER = "DP fine-tuning poster, "

#: Maps names of guarantees to accountants; both are regular expressions for the whole text, and the first match counts.
ACCOUNTANTS: dict[str, str] = {
    "published": "DP-Weights, (algorithm2|eq1)",
    "convex|strongly-convex|smooth|nonconvex": _GAUSSIAN,
    r"basic \(naive\) composition": "Dwork et al. 2006, amplified by sampling",
    "advanced composition": "Dwork, Rothblum and Vadhan 2010, the whole formula",
    "optimal composition": "Kairouz, Oh and Viswanath 2015",
    "poster: naive": rf"{_POSTER}sum over rate \* steps participations, classical Gaussian",
    "poster: advanced": f"{_POSTER}simplification as printed, with the ratio inverted",
    "poster: advanced, corrected": (
        rf"{_POSTER}simplification with the ratio corrected: epsilon = 2 eps' sqrt\(2 k ln 1/delta'\)"
    ),
    # Reports of earlier versions.
    "naive, as on the poster": r"sum over rate \* steps participations, classical Gaussian",
    "advanced, as on the poster": "printed simplification, which has the ratio upside down",
    "the same, right way up": r"the simplification read as epsilon = 2 eps' sqrt\(2 k ln 1/delta'\)",
    "moments / Renyi DP": "Abadi et al. 2016; Mironov, Talwar and Zhang 2019",
    "privacy loss distribution": f"Koskela et al. 2020; Doroshenko et al. 2022|{TIGHT}",
    "GDP: estimate, not a bound": "Bu, Dong, Long and Su 2020",
    "passes, not amplified": "one exact Gaussian a pass; no gain from the order",
    "drawing a fixed number": "Dong, Roth and Su 2022, theorem 4.2",
    "one random step a pass": (
        "Chua et al. 2025, Feldman and Shenfeld 2025; the whole distribution, bounded in the convex order"
    ),
    "Opacus PRV": "Opacus, after Gopi, Lee and Wutschitz 2021",
    "Renyi DP": RENYI,
    r"mutual information \(MI-DP\)": "Cuff and Yu 2016, one bit a fired group and step, in nats",
    r"\(epsilon, .+\)-DP, (Poisson|shuffled) batches.*": "one record that decides the sign of its batch",
    "any one record": TIGHT,
    # Training in other programs' loops.
    "own-loop|opacus": TIGHT,
    "secret protection": _FANO,
    "secret protection, mutual information": (
        f"{_FANO}|KL divergence (from the secret's absence|of opposite contributions), certified upper bound; "
        "Fano's inequality"
    ),
    "secret protection, trade-off curve": (
        f"{TIGHT}|trade-off curve of the privacy loss distribution, from the secret's absence"
    ),
}
