"""Pages in a real browser (Debian's chromium through playwright): they draw, answer, and ask the network for nothing.

Screenshots go to FEDDUAL_SCREENSHOTS when it is set, else to the test's own folder.
"""

import os
import shutil
from pathlib import Path

import pytest

import diagnostics
import feddual
from figures import report as page
from tests.helpers import tell_tiny_story, tiny

pytestmark = pytest.mark.slow

CHROMIUM = os.environ.get("FEDDUAL_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
# 3-D without a graphics card; root in a container has no sandbox.
ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
TOO_WIDE = """[...document.querySelectorAll('main *')].filter(
    one => !one.closest('.wide, pre, svg') && one.getBoundingClientRect().right > innerWidth + 0.5)
    .map(one => one.outerHTML.slice(0, 120))"""
WAIT = 300_000  # milliseconds; a busy machine draws slowly, without a graphics card


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    if not Path(CHROMIUM).is_file():
        pytest.skip("no chromium here: apt-get install chromium, or name one in FEDDUAL_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of the quickstart's story, tiny."""
    out = tmp_path_factory.mktemp("story")
    return Path(tell_tiny_story(out).report)


@pytest.fixture(scope="module")
def forgetting(tmp_path_factory):
    """The report of a run with the forgetting probe."""
    out = tmp_path_factory.mktemp("forgetting") / "run"
    probe = diagnostics.ForgettingProbe(every=1, samples=40)
    feddual.run(tiny(), out=out, probes=[probe], progress=False)
    return page.write(out)


class Visit:
    """A page, with what went wrong on it."""

    def __init__(self, browser, width, height, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.errors, self.requests = [], []
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note)
        self.context.set_offline(True)  # what is asked for all the same is an error on the page, too

    def _note(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.requests.append(request.url)

    def open(self, path, ready=None):
        self.page.goto(path.resolve().as_uri(), wait_until="commit")
        if ready:
            self.page.wait_for_selector(ready, state="attached")
        return self

    def ask(self, script, argument=None):
        return self.page.evaluate(script, argument)

    def traces(self, chart):
        """Of each panel, the visible traces with the number of their points."""
        return self.ask(
            """name => [...document.querySelectorAll(`#chart-${name} .plot`)].map(plot =>
                plot._fullData.filter(trace => trace.visible === true).map(trace => ({
                    meta: trace.meta || {}, y: [...trace.y || []],
                    points: trace.z ? trace.z.length * trace.z[0].length : trace.y.length})))""",
            chart,
        )

    def settle(self, condition):
        self.page.wait_for_function(condition)

    def clean(self):
        assert self.errors == []
        assert self.requests == []


@pytest.fixture
def visit(chromium):
    opened = []

    def go(width, scheme="light"):
        opened.append(Visit(chromium, *WIDTHS[width], scheme))
        return opened[-1]

    yield go
    for one in opened:
        one.context.close()


def shoot(visit, tmp_path, name, selectors):
    """A picture of each part; one of a whole long page is beyond what chromium can draw."""
    folder = Path(os.environ.get("FEDDUAL_SCREENSHOTS") or tmp_path)
    for selector in selectors:
        target = folder / f"{name}-{selector.strip('#') or 'page'}.png"
        visit.page.locator(selector).first.screenshot(path=target)
        assert target.stat().st_size > 1000


@pytest.mark.parametrize("width", list(WIDTHS))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_has_points_and_nothing_is_wrong(visit, report, tmp_path, width, scheme):
    seen = visit(width, scheme).open(report, "html[data-ready=yes]")
    charts = seen.ask("[...document.querySelectorAll('.chart')].map(chart => chart.id.replace('chart-', ''))")
    assert len(charts) == 8
    for chart in charts:
        panels = seen.traces(chart)
        assert panels
        assert all(trace["points"] for panel in panels for trace in panel), chart
        assert all(panels), chart
    assert seen.ask(TOO_WIDE) == []
    assert seen.ask("document.documentElement.scrollWidth - innerWidth") <= 0
    sections = seen.ask("[...document.querySelectorAll('section')].map(section => '#' + section.id)")
    shoot(seen, tmp_path, f"report-{width}-{scheme}", sections)
    seen.clean()


@pytest.mark.parametrize("width", list(WIDTHS))
def test_what_averaging_breaks_fits_the_page(visit, forgetting, tmp_path, width):
    seen = visit(width).open(forgetting, "html[data-ready=yes]")
    for chart in ("forgetting", "forgetting-stages", "client-fairness", "calibration"):
        panels = seen.traces(chart)
        assert all(panels), chart
        assert all(trace["points"] for panel in panels for trace in panel), chart
    assert seen.ask(TOO_WIDE) == []
    shoot(seen, tmp_path, f"report-{width}", ["#averaging"])
    seen.clean()


def test_toggles_change_the_picture(visit, report):
    seen = visit("desktop").open(report, "html[data-ready=yes]")
    page = seen.page
    before = seen.traces("learning-curves")[0]
    assert {trace["meta"]["metric"] for trace in before} == {"accuracy"}
    page.get_by_label("loss", exact=True).check(force=True)
    after = seen.traces("learning-curves")[0]
    assert {trace["meta"]["metric"] for trace in after} == {"loss"}
    page.get_by_label("mean of 5 rounds").check(force=True)
    assert {trace["meta"]["smoothing"] for trace in seen.traces("learning-curves")[0]} == {"mean"}
    page.get_by_label("FedAvg, IID", exact=True).uncheck()
    for chart in ("learning-curves", "gradient-norms", "timing"):
        runs = {trace["meta"].get("run") for panel in seen.traces(chart) for trace in panel}
        assert "g0" not in runs
        assert "g1" in runs
    page.locator("#gradient-norms-definition").select_option("drift")
    assert {trace["meta"]["definition"] for panel in seen.traces("gradient-norms") for trace in panel} == {"drift"}
    seen.clean()


def test_the_slider_goes_through_the_rounds_by_keyboard(visit, report):
    seen = visit("phone").open(report, "html[data-ready=yes]")
    slider = seen.page.locator("#gradient-ratios-round")
    slider.focus()
    shown = []
    for _ in range(3):
        shown.append(seen.ask("JSON.stringify(document.querySelector('#chart-gradient-ratios .plot')._fullData"
                              ".find(trace => trace.visible === true).text)"))  # fmt: skip
        slider.press("ArrowRight")
        seen.settle("document.querySelectorAll('#chart-gradient-ratios .plot .heatmaplayer .hm').length === 1")
    assert len(set(shown)) == 3
    assert seen.page.locator("#chart-gradient-ratios output").text_content() == "4"
    seen.clean()


CAMERAS = """[...document.querySelectorAll('#chart-loss-surfaces .plot')]
    .map(plot => plot._fullLayout.scene._scene.getCamera().eye)
    .map(({x, y, z}) => [x, y, z].map(value => (value + 1e-9).toFixed(3)).join())"""


def test_cameras_stay_linked(visit, report):
    seen = visit("desktop").open(report, "html[data-ready=yes]")
    first = set(seen.ask(CAMERAS))
    assert len(first) == 1
    eye = {"x": 0.5, "y": 1.5, "z": 0.75}
    turn = """eye => {
        const plot = document.querySelectorAll('#chart-loss-surfaces .plot')[1];
        return Plotly.relayout(plot, {'scene.camera': {...plot._fullLayout.scene.camera, eye}}).then(() => null)}"""
    seen.ask(turn, eye)
    linked = f"new Set({CAMERAS}).size === 1 && {CAMERAS}[0] === '0.500,1.500,0.750'"
    seen.settle(linked)
    seen.page.get_by_role("button", name="Turn left").click()
    seen.settle(f"new Set({CAMERAS}).size === 1 && {CAMERAS}[0] !== '0.500,1.500,0.750'")
    box = seen.page.locator("#chart-loss-surfaces .plot").first
    box.scroll_into_view_if_needed()
    before = seen.ask(CAMERAS)[0]
    place = box.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    seen.page.mouse.move(x, y)
    seen.page.mouse.down()
    seen.page.mouse.move(x + 60, y - 5, steps=4)
    seen.page.mouse.up()
    seen.settle(f"new Set({CAMERAS}).size === 1 && {CAMERAS}[0] !== {before!r}")
    seen.page.get_by_role("button", name="Reset view").click()
    seen.settle(f"new Set({CAMERAS}).size === 1 && {CAMERAS}[0] === {next(iter(first))!r}")
    seen.clean()


def test_light_and_dark(visit, report):
    seen = visit("desktop").open(report, "html[data-ready=yes]")

    def colours():
        return seen.ask(
            "[getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('#chart-learning-curves .plot')._fullLayout.font.color]"
        )

    light = colours()
    button = seen.page.locator("#theme")
    button.focus()
    button.press("Enter")
    seen.settle("document.documentElement.dataset.theme === 'dark'")
    assert button.get_attribute("aria-pressed") == "true"
    dark = colours()
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    seen.page.emulate_media(color_scheme="dark")  # the choice made by hand stays
    button.click()
    assert colours() == light
    seen.clean()


def test_the_download_is_the_data(visit, report):
    seen = visit("desktop").open(report, "html[data-ready=yes]")
    with seen.page.expect_download() as caught:
        seen.page.locator("[data-csv=learning-curves]").click()
    assert caught.value.suggested_filename == "learning-curves.csv"
    text = Path(caught.value.path()).read_text(encoding="utf-8")
    assert text.splitlines()[0] == "run,draw,seed,quantity,round,value"
    assert len(text.splitlines()) == 1 + 3 * 2 * 4  # runs, metrics, rounds
    seen.clean()


def test_printed_it_is_light_and_without_buttons(visit, report, tmp_path):
    seen = visit("desktop", "dark").open(report, "html[data-ready=yes]")
    data = seen.page.pdf(path=tmp_path / "report.pdf")
    assert data.startswith(b"%PDF")
    seen.page.emulate_media(media="print")
    assert not seen.page.locator("#theme").is_visible()
    assert seen.page.locator("#summary").is_visible()
    seen.clean()


@pytest.mark.parametrize("width", list(WIDTHS))
def test_a_notebook_as_a_page(visit, tmp_path, width):
    if not NOTEBOOKS:
        pytest.skip("no notebook in notebooks/")
    from nbconvert.exporters import HTMLExporter

    # By default such a page loads these from the network.
    libraries = ("mathjax_url", "require_js_url", "jquery_url", "mermaid_js_url", "mermaid_layout_elk_js_url")
    body, _ = HTMLExporter(embed_images=True, **dict.fromkeys(libraries, "")).from_filename(str(NOTEBOOKS[0]))
    path = tmp_path / f"{NOTEBOOKS[0].stem}.html"
    path.write_text(body, encoding="utf-8")
    seen = visit(width).open(path, "body")
    assert seen.page.locator("h1").first.is_visible()
    assert seen.page.locator("img, .js-plotly-plot, table").count()
    shoot(seen, tmp_path, f"notebook-{width}", ["body"])
    seen.clean()
