"""Pieces of an HTML page. Whatever comes from a model or a file is escaped here."""

import base64
import html
import importlib.resources
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 110
_WIDE = 880  # dots from which a figure is shown larger on a phone, and scrolls
# The page loads nothing: pictures, style and script are in it, and the browser is told to refuse the rest.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def text(value: object) -> str:
    """A value as text of a page."""
    return html.escape(str(value), quote=True)


def page(title: str, subtitle: str, sections: Iterable[tuple[str, str, str]], foot: str) -> str:
    """A whole page.

    Args:
        title: its heading.
        subtitle: a line below.
        sections: identifier, name in the list of contents ("" leaves it out) and HTML of each part.
        foot: HTML of the last lines.
    """
    assets = importlib.resources.files("dmvi.posterior") / "assets"
    style = (assets / "page.css").read_text("utf-8")
    script = (assets / "page.js").read_text("utf-8")
    parts = list(sections)
    links = "".join(f'<li><a href="#{text(i)}">{text(name)}</a></li>' for i, name, _ in parts if name)
    body = "\n".join(f'<section id="{text(i)}">{content}</section>' for i, _, content in parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{text(title)}</h1>
<p class="sub">{text(subtitle)}</p>
<nav aria-label="Contents"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
<footer>{foot}</footer>
<script>
{script}</script>
</body>
</html>
"""


def picture(figure: "Figure", alt: str, caption: str) -> str:
    """A figure inside the page, as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    # Twice as many dots as the page shows would be sharper and twice the size; this is legible on both.
    width = round(figure.get_figwidth() * _DPI)
    height = round(figure.get_figheight() * _DPI)
    pane = "pane wide" if width > _WIDE else "pane"
    return (
        f'<figure><div class="{pane}" tabindex="0" role="group" aria-label="Figure, may scroll sideways">'
        f'<img alt="{text(alt)}" width="{width}" height="{height}" src="data:image/png;base64,{encoded}">'
        f"</div><figcaption>{text(caption)}</figcaption></figure>"
    )


def sortable(caption: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]]) -> str:
    """A table whose first column names and whose others count; the page's script sorts it."""
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = []
    for name, values in rows:
        cells = "".join(f'<td data-value="{value!r}">{value:.4g}</td>' for value in map(float, values))
        body.append(f'<tr><th scope="row" data-value="{text(name)}">{text(name)}</th>{cells}</tr>')
    return (
        '<label class="find" hidden>Find a parameter: <input type="search"></label>'
        '<div class="scroll tall" tabindex="0" role="region" aria-label="Table of parameters">'
        f'<table class="sortable"><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def plain_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text."""
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = []
    for first, *others in rows:
        cells = "".join(f"<td>{text(value)}</td>" for value in others)
        body.append(f'<tr><th scope="row">{text(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table class="plain"><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def numbers(values: Mapping[str, str]) -> str:
    """Named numbers side by side."""
    items = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in values.items()
    )
    return f'<dl class="numbers">{items}</dl>'
