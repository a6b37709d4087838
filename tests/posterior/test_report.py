"""The report: complete in itself, escaped, sortable, and without an error in a browser."""

import dataclasses
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from dmvi._errors import InputError
from dmvi.cli._app import app
from dmvi.posterior import Posterior
from tests.posterior.gaussians import ScaledGaussian, a_run, gaussian_target

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def fit() -> Posterior:
    return Posterior(gaussian_target(), ScaledGaussian(0.3), a_run(), jax.random.key(5))


@pytest.fixture(scope="module")
def page(fit, tmp_path_factory) -> Path:
    return fit.report(tmp_path_factory.mktemp("report") / "report.html", n=500)


class Outline(HTMLParser):
    """Tags, headings and pictures of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.headings: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))


def test_the_verdict_comes_first_and_everything_is_there(fit, page):
    text = page.read_text("utf-8")
    places = [
        text.index(f'id="{part}"')
        for part in ("verdict", "parameters", "figures", "checks", "model", "versions", "cite")
    ]
    assert places == sorted(places)
    assert fit.verdict.value in text
    assert all(
        word in text for word in ("What to do next", "k-hat", "log evidence", "arXiv:2311.00474", "jaxlib")
    )
    for row in fit.summary(500).rows:
        assert f">{row.name}</th>" in text
        assert f">{row.mean:.4g}</td>" in text


def test_the_page_is_accessible_and_loads_nothing(page):
    text = page.read_text("utf-8")
    outline = Outline(text)
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(outline.headings, outline.headings[1:], strict=False))
    pictures = [attributes for tag, attributes in outline.tags if tag == "img"]
    assert len(pictures) == 6
    assert all(len(attributes["alt"]) > 30 for attributes in pictures)
    assert all(attributes["src"].startswith("data:image/png;base64,") for attributes in pictures)
    for tag, attributes in outline.tags:
        for name in ("src", "href"):
            address = attributes.get(name) or "#"
            assert address.startswith(("data:", "#")), (tag, address)
    html = next(attributes for tag, attributes in outline.tags if tag == "html")
    assert html["lang"] == "en"
    assert "url(" not in text
    assert "@import" not in text
    assert {"main", "nav", "caption", "figcaption"} <= {tag for tag, _ in outline.tags}


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def test_text_has_contrast():
    """At least 4.5 to 1, for every colour of text on every colour of ground."""
    css = (Path(__file__).parents[2] / "src/dmvi/posterior/assets/page.css").read_text()
    named = dict(re.findall(r"--(\w+): (#\w{6})", css))
    grounds = [named["paper"], named["wash"], *re.findall(r"background: (#\w{6})", css)]
    for ink in (named["ink"], named["soft"], named["link"]):
        for ground in grounds:
            light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


def test_names_from_a_model_are_text_and_nothing_else(tmp_path):
    target = gaussian_target()
    constrain = target._constrain
    hostile = dataclasses.replace(
        target,
        names=(HOSTILE, "s[0]", "s[1]"),
        _constrain=lambda xi, params: {HOSTILE: constrain(xi, params)["a"], "$x_{": xi[1]},
    )
    run = dataclasses.replace(a_run(), settings={"model": HOSTILE, HOSTILE: HOSTILE})
    posterior = Posterior(hostile, ScaledGaussian(), run, jax.random.key(0))
    text = posterior.report(tmp_path / "r.html", n=100).read_text("utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_folder_is_refused_and_a_failure_leaves_the_old_page(fit, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="folder"):
        fit.report(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        fit.report(tmp_path / "nowhere" / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_same_page_from_the_file_alone(fit, tmp_path):
    path = fit.save(tmp_path / "fit.dmvi", n=200)
    result = CliRunner().invoke(app, ["report", str(path)])
    assert result.exit_code == 3, "the verdict is not to trust, and the exit code says so"
    assert fit.verdict.value in result.output
    assert fit.verdict.value in (tmp_path / "fit.html").read_text("utf-8")
    again = CliRunner().invoke(app, ["report", str(path)])
    assert again.exit_code == 2
    assert "--force" in again.output
    assert CliRunner().invoke(app, ["report", str(path), "--force"]).exit_code == 3
    missing = CliRunner().invoke(app, ["report", str(tmp_path / "no.dmvi")])
    assert missing.exit_code == 2
    path.write_bytes(path.read_bytes()[:1000])
    broken = CliRunner().invoke(app, ["report", str(path), "--force"])
    assert broken.exit_code == 2
    assert "no intact file" in broken.output


# A window of Chromium is at least 500 wide; a body of WIDTH is as narrow as a phone.
PROBE = """<script>
document.body.style.width = "WIDTHpx";
const heads = [...document.querySelectorAll("table.sortable thead th")];
const rows = () => [...document.querySelectorAll("table.sortable tbody tr")];
heads[1].querySelector("button").click();
const up = rows().map((row) => Number(row.cells[1].dataset.value));
heads[1].querySelector("button").click();
const down = rows().map((row) => Number(row.cells[1].dataset.value));
const sort = heads[1].getAttribute("aria-sort");
const input = document.querySelector("label.find input");
input.value = "s["; input.dispatchEvent(new Event("input"));
const left = rows().filter((row) => !row.hidden).length;
const pictures = [...document.images].every((image) => image.complete && image.naturalWidth > 0);
const fits = [...document.querySelectorAll(".verdict, dl.numbers div, figcaption")].every(
  (box) => box.scrollWidth <= box.clientWidth
);
document.title = JSON.stringify({ fits,
  up, down, sort, left, pictures, wide: document.body.scrollWidth,
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1200, 390])
def test_in_a_browser_tables_sort_pictures_load_and_nothing_complains(page, tmp_path, width):
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text("utf-8").replace("</body>", PROBE.replace("WIDTH", str(width))), "utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
            "--virtual-time-budget=5000",
            "--dump-dom",
            probed.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    title = re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title, done.stderr
    found = json.loads(title[1].replace("&amp;", "&").replace("&quot;", '"'))
    assert found["up"] == sorted(found["up"])
    assert found["down"] == found["up"][::-1]
    assert found["sort"] == "descending"
    assert found["left"] == 2
    assert found["pictures"]
    assert found["fits"], "no word sticks out of its box"
    assert found["wide"] <= width, "nothing sticks out of the page sideways"
