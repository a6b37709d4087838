"""Of the page: what the published training gives, beside the exact posterior and the paper's values."""

from collections.abc import Mapping, Sequence

from dmvi.paper._aggregate import Key, Line, line_of
from dmvi.paper._models import MODELS, TITLES
from dmvi.paper._page_parts import DMVI, LANDING, OURS, SIZES, missed, of_all, span, table
from dmvi.paper._page_texts import AUTHORS, LANDING_ASKED, LANDING_BAR, SHRINKING, STILL_WIDE
from dmvi.paper._reported import REPORTED
from dmvi.paper._tables import number


def shrinking(gathered: Mapping[Key, Sequence[Line]]) -> list[str]:
    """How narrow the published objective makes every guide."""
    rows: list[list[str]] = []
    wide: dict[str, list[str]] = {}
    for (_, _, model, n), lines in gathered.items():
        dmvi = [line for line in lines if line.method in DMVI]
        cells = [line_of(lines, "advi-code"), line_of(lines, "nfvi-code")]
        if not dmvi and not any(cells):
            continue
        ours = line_of(lines, OURS)
        for name, found in zip(("ADVI", "NFVI", "DMVI"), ([cells[0]], [cells[1]], dmvi), strict=True):
            if any(line is not None and line.sd_ratio > 1 for line in found):
                wide.setdefault(f"{name} at N = {n}", []).append(TITLES[model].lower())
        rows.append(
            [
                TITLES[model],
                str(n),
                *(number(line.sd_ratio, ".3f") if line else "" for line in cells),
                of_all(span([line.sd_ratio for line in dmvi], ".3f"), dmvi),
                number(ours.sd_ratio, ".3f") if ours else "",
            ]
        )
    if not rows:
        return []
    heads = ["model", "N", "ADVI", "NFVI", "DMVI", "diffusion (ours), by the ELBO"]
    return [
        SHRINKING,
        *table(heads, rows),
        *([STILL_WIDE.format(wide=_listed(wide))] if wide else []),
    ]


def _listed(wide: Mapping[str, Sequence[str]]) -> str:
    """Where a guide is wider, in words."""
    words = [
        f"{name} is not on {'any model' if len(models) == len(MODELS) else ', '.join(models)}"
        for name, models in wide.items()
    ]
    return "; ".join(words)


def _of_the_paper(fixed: Mapping[Key, Sequence[Line]]) -> list[tuple[Key, Sequence[Line]]]:
    """Tables of sizes that the paper reports; data sets of one's own may have others."""
    return [(key, lines) for key, lines in fixed.items() if key[2:] in REPORTED]


def authors_data(fixed: Mapping[Key, Sequence[Line]]) -> list[str]:
    """On the one data set per model that the paper uses, its values come out again."""
    rows = []
    for (_, _, model, n), lines in _of_the_paper(fixed):
        reported = REPORTED[model, n]
        advi, nfvi = line_of(lines, "advi-code"), line_of(lines, "nfvi-code")
        dmvi = [line for line in lines if line.method in DMVI]
        if not dmvi:
            continue
        rows.append(
            [
                TITLES[model],
                str(n),
                span([reported.dmvi_least, reported.dmvi_most], ".2f"),
                of_all(span([line.mse_raw for line in dmvi], ".2f"), dmvi),
                f"{reported.advi:.2f}",
                number(advi.mse_raw) if advi else "",
                f"{reported.nfvi:.2f}",
                number(nfvi.mse_raw) if nfvi else "",
                number(lines[0].reference_mse, ".3f"),
                span([line.replicates for line in lines if line.method != "exact"], ".0f"),
            ]
        )
    if not rows:
        return []
    heads = [
        "model",
        "N",
        "DMVI, paper",
        "DMVI, here",
        "ADVI, paper",
        "ADVI, here",
        "NFVI, paper",
        "NFVI, here",
    ]
    return [
        "## On the authors' own data\n",
        AUTHORS,
        *table([*heads, "exact posterior", "seeds"], rows),
        *_landing(fixed),
    ]


def _landing(fixed: Mapping[Key, Sequence[Line]]) -> list[str]:
    """Whether DMVI lands on the paper's values where its training has an end."""
    away, misses = [], []
    for (_, _, model, n), lines in _of_the_paper(fixed):
        reported = REPORTED[model, n]
        for line in lines if model in LANDING else ():
            if line.method not in DMVI:
                continue
            mse = line.mse_raw
            away.append(max(reported.dmvi_least - mse, mse - reported.dmvi_most, 0.0))
            if away[-1] > LANDING_BAR:
                misses.append(f"{TITLES[model]}, N = {n}, {line.method}: {number(mse, '.3f')}")
    if not away:
        return []
    every = len(LANDING) * len(SIZES) * len(DMVI)
    return [
        missed(f"{LANDING_ASKED}. Run so far: {len(away)} of {every} configurations", misses),
        f"The largest distance from the range that the paper reports is {number(max(away), '.3f')}.\n",
    ]
