"""Tables in the paper's layout, extended: Markdown, LaTeX and HTML."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from dmvi.paper._aggregate import Key, Line
from dmvi.paper._methods import METHODS
from dmvi.paper._models import TITLES

HEADS = ("method", "N_diff", "N_steps", "N_order")
LATEX_HEADS = ("", "$N_\\text{diff}$", "$N_\\text{steps}$", "$N_\\text{order}$")


@dataclass(frozen=True)
class Column:
    """A figure of a line: its head in text and in LaTeX, and how it is written."""

    head: str
    latex: str
    show: Callable[[Line], str]


NOT_FINITE = "not finite"


def number(value: float, style: str = ".2f") -> str:
    """A figure as tables show it: nothing where there is none, powers of ten where it is huge."""
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return NOT_FINITE
    # "z": what rounds to zero has no sign.
    return format(value, ".1e" if abs(value) >= 1e4 else f"z{style}")


COLUMNS = (
    Column("T_train", "$\\bar{T}_\\text{train}$", lambda line: number(line.train)),
    Column("T_sample", "$\\bar{T}_\\text{sample}$", lambda line: number(line.sample)),
    Column("MSE", "MSE", lambda line: number(line.mse, ".3g")),
    Column("exact MSE", "exact", lambda line: number(line.reference_mse, ".3g")),
    Column("ratio", "ratio", lambda line: number(line.ratio)),
    Column("W1", "$W_1$", lambda line: number(line.distance, ".3f")),
    Column("50 %", "50\\,\\%", lambda line: number(line.cover50)),
    Column("90 %", "90\\,\\%", lambda line: number(line.cover90)),
    Column("gap", "gap", lambda line: number(line.gap)),
    Column("k-hat", "$\\hat{k}$", lambda line: number(line.khat)),
    Column("sd ratio", "sd", lambda line: number(line.sd_ratio, ".3f")),
)
CAPTION = (
    "T_train: CPU seconds of a fit, compilation included; T_sample: CPU seconds of 20,000 draws. MSE: "
    "squared error of draws to the simulating parameters, in unconstrained coordinates with softplus "
    "(mixture: draws relabelled to the truth). exact MSE: that of the exact posterior (mixture: of NUTS); "
    "ratio: to it. W1: 1-Wasserstein distance of marginals to that posterior in its sds, worst coordinate, "
    "mean over replicates. 50 %, 90 %: coverage of central intervals (mixture: of components in the "
    "order of their first coordinates). gap: log evidence less ELBO, nats (mixture: evidence by importance "
    "sampling from our diffusion). "
    "sd ratio: sd over the exact sd, median over coordinates. Ours: draws as the verdict of the fit advises, "
    "resampled by their weights where it says so. NUTS: four chains of the centred models as printed, in the "
    "mixture from the truth, longer until R-hat is below 1.01 or sixteen times as long; R-hat and "
    "divergences, which are many in hierarchical models 3 and 4, stand in results.csv. DMVI as published: "
    "draws with dropout, as the code makes them; gap and k-hat are of its density without."
)


@dataclass(frozen=True)
class Table:
    """One model: a title, sizes side by side, and the lines of each size by method."""

    title: str
    sizes: tuple[int, ...]
    lines: Mapping[int, Sequence[Line]]

    def rows(self) -> list[tuple[list[str], list[list[str]]]]:
        """For each method its name and configuration, and its cells at each size."""
        by_size = {n: {line.method: line for line in lines} for n, lines in self.lines.items()}
        names = [name for name in METHODS if any(name in found for found in by_size.values())]
        return [
            (
                configured(name),
                [
                    [column.show(by_size[n][name]) if name in by_size[n] else "" for column in COLUMNS]
                    for n in self.sizes
                ],
            )
            for name in names
        ]


def configured(name: str) -> list[str]:
    """A method's title and the three numbers of its configuration."""
    method = METHODS[name]
    return [method.title, *(map(str, method.configuration) if method.configuration else ("", "", ""))]


def tables_of(gathered: Mapping[Key, Sequence[Line]]) -> list[Table]:
    """One table for each model, variant and kind of data."""
    found: dict[tuple[str, str, str], dict[int, Sequence[Line]]] = {}
    for (variant, data, model, n), lines in gathered.items():
        found.setdefault((variant, data, model), {})[n] = lines
    return [Table(table_title(*key), tuple(sorted(sizes)), sizes) for key, sizes in found.items()]


def table_title(variant: str, data: str, model: str) -> str:
    """What a table is of."""
    how = "as printed" if variant == "printed" else "as in the code"
    where = "each replicate with its own data" if data == "own" else "all replicates on one given data set"
    return f"{TITLES[model]}, {how}, {where}"


def markdown(tables: Sequence[Table]) -> str:
    """All tables in Markdown."""
    parts = ["# The paper's experiments", "", CAPTION]
    for table in tables:
        parts += ["", f"## {table.title}", "", *markdown_lines(table)]
    return "\n".join(parts) + "\n"


def markdown_lines(table: Table) -> list[str]:
    """One table in Markdown."""
    heads = [*HEADS, *(f"{column.head} (N={n})" for n in table.sizes for column in COLUMNS)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += [
        "| " + " | ".join([*first, *chain.from_iterable(cells)]) + " |" for first, cells in table.rows()
    ]
    return lines


def latex(tables: Sequence[Table]) -> str:
    """All tables in LaTeX, for the packages booktabs, amsmath and graphicx."""
    parts = ["% needs booktabs, amsmath, graphicx"]
    for table in tables:
        width = len(COLUMNS)
        groups = " & ".join(f"\\multicolumn{{{width}}}{{c}}{{$N={n}$}}" for n in table.sizes)
        rules = " ".join(
            f"\\cmidrule(lr){{{5 + width * i}-{4 + width * (i + 1)}}}" for i in range(len(table.sizes))
        )
        heads = " & ".join([*LATEX_HEADS, *[column.latex for column in COLUMNS] * len(table.sizes)])
        body = [
            " & ".join(_latex(text) for text in [*first, *chain.from_iterable(cells)]) + r" \\"
            for first, cells in table.rows()
        ]
        parts += [
            r"\begin{table*}[h!]",
            r"\centering",
            r"\resizebox{\textwidth}{!}{%",
            f"\\begin{{tabular}}{{@{{}}l{'r' * (3 + width * len(table.sizes))}@{{}}}}\\toprule",
            rf"&&& & {groups} \\",
            rules,
            rf"{heads} \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            f"\\caption{{{_latex(table.title)}. {_latex(CAPTION)}}}",
            r"\end{table*}",
            "",
        ]
    return "\n".join(parts)


def _latex(text: str) -> str:
    for plain, escaped in (("%", r"\%"), ("_", r"\_"), ("k-hat", r"$\hat k$")):
        text = text.replace(plain, escaped)
    return text


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:90rem;padding:0 1rem}"
    "div{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "th,td{padding:.2rem .6rem;text-align:right;white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}"
    "thead tr:last-child th{border-bottom:1px solid}tbody tr:hover{background:#8882}"
    ".size{border-left:1px solid #8888}"
)


def page(tables: Sequence[Table], figures: Mapping[str, str]) -> str:
    """All tables as one HTML page; `figures` maps titles of tables to files beside it."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>The paper's experiments</title><style>{STYLE}</style>",
        f"<h1>The paper's experiments</h1><p>{html.escape(CAPTION)}</p>",
    ]
    for table in tables:
        parts.append(f"<h2>{html.escape(table.title)}</h2>")
        if table.title in figures:
            words = html.escape(f"Intervals of each method: {table.title}")
            parts.append(f'<p><img src="{figures[table.title]}" alt="{words}" style="max-width:100%"></p>')
        parts.append(f"<div><table>{_html_head(table)}<tbody>{_html_body(table)}</tbody></table></div>")
    return "\n".join(parts) + "\n"


def _html_head(table: Table) -> str:
    sizes = "".join(f'<th class="size" colspan="{len(COLUMNS)}">N = {n}</th>' for n in table.sizes)
    heads = "".join(f"<th>{head}</th>" for head in HEADS)
    for _ in table.sizes:
        heads += "".join(
            f"<th{_class(i)}>{html.escape(column.head)}</th>" for i, column in enumerate(COLUMNS)
        )
    return f'<thead><tr><th colspan="{len(HEADS)}"></th>{sizes}</tr><tr>{heads}</tr></thead>'


def _html_body(table: Table) -> str:
    lines = []
    for first, sizes in table.rows():
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in first)
        for figures in sizes:
            cells += "".join(f"<td{_class(i)}>{text}</td>" for i, text in enumerate(figures))
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join(lines)


def _class(i: int) -> str:
    return ' class="size"' if i == 0 else ""
