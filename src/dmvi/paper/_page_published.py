"""Of the page: what the published training gives, beside the exact posterior and the paper's values."""

from collections.abc import Mapping, Sequence

from dmvi.paper._aggregate import Key, Line, line_of
from dmvi.paper._models import MODELS, TITLES
from dmvi.paper._page_parts import DMVI, LANDING, OURS, SIZES, missed, of_all, span, table
from dmvi.paper._page_texts import (
    ALL_FAR_BELOW,
    AUTHORS,
    FAR_BELOW,
    LANDING_ASKED,
    LANDING_BAR,
    SHRINKING,
    STILL_WIDE,
)
from dmvi.paper._published import BATCH, EPOCHS
from dmvi.paper._reported import REPORTED
from dmvi.paper._tables import number

GUIDES = {"ADVI": ["advi-code"], "NFVI": ["nfvi-code"], "DMVI": DMVI}  # as published


def shrinking(gathered: Mapping[Key, Sequence[Line]]) -> list[str]:
    """How narrow the published objective makes every guide, and which are not."""
    rows: list[list[str]] = []
    wide: dict[tuple[str, int], list[str]] = {}
    for (_, _, model, n), lines in gathered.items():
        guides = {
            name: [line for line in lines if line.method in methods] for name, methods in GUIDES.items()
        }
        if not any(guides.values()):
            continue
        ours = line_of(lines, OURS)
        for name, found in guides.items():
            above = sum(not line.sd_ratio < FAR_BELOW for line in found)  # nor are draws that are not finite
            which = f" ({above} of {len(found)} configurations)" if name == "DMVI" else ""
            if above:
                wide.setdefault((name, n), []).append(f"{TITLES[model].lower()}{which}")
        ratios = {name: span([line.sd_ratio for line in found], ".3f") for name, found in guides.items()}
        rows.append(
            [
                TITLES[model],
                str(n),
                ratios["ADVI"],
                ratios["NFVI"],
                of_all(ratios["DMVI"], guides["DMVI"]),
                number(ours.sd_ratio, ".3f") if ours else "",
            ]
        )
    if not rows:
        return []
    heads = ["model", "N", *GUIDES, "diffusion (ours), by the ELBO"]
    return [SHRINKING, *table(heads, rows), _still_wide(wide)]


def _still_wide(wide: Mapping[tuple[str, int], Sequence[str]]) -> str:
    """Which guides are not far narrower than the posterior, on which models."""
    if not wide:
        return ALL_FAR_BELOW
    ordered = sorted(wide.items(), key=lambda item: (list(GUIDES).index(item[0][0]), item[0][1]))
    listed = [
        f"- {name} at N = {n}: {'all models' if _all_models(models) else ', '.join(models)}"
        for (name, n), models in ordered
    ]
    few, many = (EPOCHS * -(-n // BATCH) for n in SIZES)
    return STILL_WIDE.format(wide="\n".join(listed), epochs=EPOCHS, few=few, many=many)


def _all_models(models: Sequence[str]) -> bool:
    """Whether these are all of them, none with a remark."""
    return list(models) == [TITLES[model].lower() for model in MODELS]


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
