"""The report page in a real browser: it opens without complaint, plays, and all its parts follow one moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fate.view.rendering import VideoClock, render_video
from fate.view.report import measure_event_rate, write_report
from tests.view.browser import Browser, find_browser
from tests.view.recorded import drive, frame, steady

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="needs Chromium on the path, or its program in FATE_TEST_BROWSER"
)
RECORDING = steady(1.0, per_second=5000)
FRAMES = drive(RECORDING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def clock(folder: Path) -> VideoClock:
    clock = render_video(RECORDING, folder / "run.mp4", FRAMES, slow=2, classes=["car", "pedestrian"])
    for name, limit in (("report.html", 1 << 30), ("linked.html", 0)):
        write_report(
            folder / name, folder / "run.mp4", FRAMES, {"events": 5000, "dropped": {"windows": 12345}}, title="A run",
            clock=clock, classes=["car", "pedestrian"], event_rate=measure_event_rate(RECORDING), hz=40,
            embed_limit=limit,
        )  # fmt: skip
    return clock


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(PROGRAM or "") as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, folder: Path, clock: VideoClock) -> Iterator[Browser]:
    """The report, freshly opened, its video ready; the test fails on any complaint of the console."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(folder / "report.html")
    browser.wait("video.readyState >= 2 && !video.seeking")
    yield browser
    browser.value("1")  # take in what the browser has said by now
    assert browser.complaints == []


def middle_of(browser: Browser, selector: str, share: float = 0.5) -> tuple[float, float]:
    """A place in the window: that share of the way over an element, which is scrolled to first."""
    browser.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    left, top, width, height = browser.value(
        f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect();"
        " return [r.left, r.top, r.width, r.height]; })()"
    )
    return left + share * width, top + height / 2


def shown(browser: Browser) -> int:
    browser.wait("!video.seeking")
    return int(browser.value("shownFrame()"))


def test_it_asks_for_nothing_but_itself(page: Browser, folder: Path) -> None:
    addresses = {request for request in page.requests if not request.startswith(("blob:", "data:"))}
    assert addresses == {(folder / "report.html").as_uri()}


def test_its_numbers_are_those_of_the_data(page: Browser) -> None:
    words = page.value("document.body.innerText")
    cars = sum(int((each.class_ids == 0).sum()) for each in FRAMES)
    assert f"car\n{cars}" in words
    assert "12\u202f345" in words
    assert page.value("document.querySelectorAll('#tracks tbody tr').length") == 2
    first = page.value("document.querySelector('#tracks tbody tr').innerText").split()
    assert first[:2] == ["#3", "car"]
    assert first[2] == f"{(FRAMES[0].t_us - RECORDING.start_us) / 1e6:.3f}"
    assert int(first[8]) == len(FRAMES)
    assert page.value("[...document.querySelectorAll('#latency-table tbody tr')].length") == 3


def test_space_plays_and_pauses_and_the_playhead_follows(page: Browser) -> None:
    before = page.value("document.querySelector('#rate .playhead').getAttribute('x1')")
    page.press(" ", "Space", " ")
    page.wait("!video.paused && shownFrame() > 3")
    page.press(" ", "Space", " ")
    page.wait("video.paused")
    page.value("new Promise(requestAnimationFrame)")
    assert float(page.value("document.querySelector('#rate .playhead').getAttribute('x1')")) > float(before)
    assert page.value("Math.abs(frameOf(now) - shownFrame())") <= 1
    assert page.value("byId('play').getAttribute('aria-label')") == "Play"


def test_comma_and_full_stop_move_by_single_pictures(page: Browser, clock: VideoClock) -> None:
    assert shown(page) == 0
    for expected in (1, 2, 3):
        page.press(".", "Period", ".")
        assert shown(page) == expected
    page.press(",", "Comma", ",")
    assert shown(page) == 2
    assert page.value("now") == clock.time_us(2)


def test_arrows_move_by_a_second_of_video_and_stay_inside(page: Browser, clock: VideoClock) -> None:
    page.press("ArrowRight")
    assert shown(page) == clock.fps
    page.press("End")
    assert shown(page) == clock.num_frames - 1
    page.press("ArrowRight")
    assert shown(page) == clock.num_frames - 1
    page.press("Home")
    assert shown(page) == 0


@pytest.mark.parametrize("plot", ["rate", "boxes", "lanes"])
def test_a_click_on_a_plot_goes_there_and_a_drag_follows(page: Browser, clock: VideoClock, plot: str) -> None:
    page.click(*middle_of(page, f"#{plot} svg", 0.5))
    halfway = shown(page)
    assert halfway == pytest.approx(clock.num_frames / 2, abs=3)
    page.click(*middle_of(page, f"#{plot} svg", 0.3), drag_to=middle_of(page, f"#{plot} svg", 0.8))
    assert shown(page) > halfway + clock.num_frames // 5
    assert page.value("Number(scrubber.value)") == shown(page)


def test_the_scrubber_seeks(page: Browser) -> None:
    page.value("scrubber.value = 20; scrubber.dispatchEvent(new Event('input'))")
    assert shown(page) == 20
    assert page.value("byId('time').textContent").startswith(page.value("seconds(now)"))


def test_a_click_on_a_track_goes_to_its_first_box_and_marks_it(page: Browser, clock: VideoClock) -> None:
    first = next(each.t_us for each in FRAMES if len(each.class_ids) == 2)
    page.click(*middle_of(page, "#tracks tbody tr:nth-child(2) td:nth-child(2)"))
    assert abs(clock.time_us(shown(page)) - first) <= clock.step_us
    page.press(".", "Period", ".")
    assert page.value("document.querySelectorAll('#tracks tr.live').length") == 2


def test_a_click_on_a_column_sorts_by_it_and_again_the_other_way(page: Browser) -> None:
    boxes = "[...document.querySelectorAll('#tracks tbody tr')].map((row) => Number(row.cells[5].dataset.v))"
    for order in (False, True):
        page.value("document.querySelectorAll('#tracks th button')[5].click()")
        values = page.value(boxes)
        assert values == sorted(values, reverse=order)


def test_colours_follow_the_system_and_the_button(page: Browser, folder: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.value(ground)
    page.open(folder / "report.html", "dark")
    page.wait("document.readyState === 'complete'")
    dark = page.value(ground)
    assert dark != light
    page.value("byId('theme').click()")
    assert page.value(ground) == light
    page.value("localStorage.removeItem('fate-theme')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_their_ground(page: Browser, folder: Path, theme: str) -> None:
    page.open(folder / "report.html", theme)
    colours = page.value(
        "(() => { const probe = document.createElement('i'); document.body.append(probe);"
        " const look = (name) => { probe.style.color = `var(--${name})`;"
        " return getComputedStyle(probe).color.match(/\\d+/g).map(Number); };"
        " return Object.fromEntries(['ink','soft','bad','good','accent','on-accent','ground','band',"
        " ...Array.from({length: 8}, (_, i) => 'c' + i)].map((name) => [name, look(name)])); })()"
    )

    def luminance(name: str) -> float:
        shares = [value / 255 for value in colours[name]]
        red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(one: str, other: str) -> float:
        high, low = sorted((luminance(one), luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for ground in ("ground", "band"):
        assert min(contrast(name, ground) for name in ("ink", "soft", "bad", "good")) >= 4.5
    assert contrast("on-accent", "accent") >= 4.5
    assert min(contrast(f"c{index}", "ground") for index in range(8)) >= 3


def test_every_control_has_a_name_and_can_be_reached(page: Browser) -> None:
    unnamed = page.value(
        "[...document.querySelectorAll('button, input, select, [role=img], video')].filter((node) =>"
        " !(node.getAttribute('aria-label') || node.textContent.trim() || node.closest('label'))).length"
    )
    assert unnamed == 0
    assert page.value("[...document.querySelectorAll('button, input, select')].every((node) => node.tabIndex >= 0)")
    repeated = page.value(
        "(() => { const ids = [...document.querySelectorAll('[id]')].map((n) => n.id);"
        " return ids.length - new Set(ids).size; })()"
    )
    assert repeated == 0


def test_a_phone_shows_it_without_scrolling_sideways(folder: Path, clock: VideoClock) -> None:
    with Browser(PROGRAM or "", width=360, height=740, phone=True) as phone:
        phone.open(folder / "report.html")
        phone.wait("video.readyState >= 2")
        assert phone.value("document.documentElement.scrollWidth") <= 360
        assert phone.value("byId('play').getBoundingClientRect().height") >= 40
        assert phone.complaints == []


def test_a_table_that_is_wider_than_a_phone_says_that_it_scrolls(folder: Path, clock: VideoClock) -> None:
    with Browser(PROGRAM or "", width=390, height=740, phone=True) as phone:
        phone.open(folder / "report.html")
        phone.wait("video.readyState >= 2")
        wide = "[...document.querySelectorAll('.scroll')].filter((part) => part.scrollWidth > part.clientWidth + 2)"
        assert phone.value(f"{wide}.every((part) => getComputedStyle(part, '::before').content.includes('scroll'))")
        tracks = "byId('tracks').parentElement"
        assert phone.value(f"{tracks}.scrollWidth > {tracks}.clientWidth")
        phone.value(f"{tracks}.scrollLeft = 9999")
        phone.wait(f"getComputedStyle({tracks}, '::before').content === 'none'")
        latency = "byId('latency-table').parentElement"
        assert phone.value(f"{latency}.scrollWidth <= {latency}.clientWidth")


def test_a_video_beside_the_page_plays_too(browser: Browser, folder: Path, clock: VideoClock) -> None:
    browser.complaints.clear()
    browser.open(folder / "linked.html")
    browser.wait("video.readyState >= 2 && !video.seeking")
    browser.press(".", "Period", ".")
    assert shown(browser) == 1
    assert browser.complaints == []


def test_a_missing_video_is_said_on_the_page(browser: Browser, folder: Path, clock: VideoClock) -> None:
    text = (folder / "linked.html").read_text().replace('data-href="run.mp4"', 'data-href="gone.mp4"')
    (folder / "gone.html").write_text(text)
    browser.open(folder / "gone.html")
    browser.wait("byId('trouble').textContent.includes('gone.mp4 was not found')")


@pytest.mark.parametrize("frames", [[], [frame(5000, [[1, 2, 3, 4]])], FRAMES])
def test_a_page_without_a_video_works_too(browser: Browser, tmp_path: Path, frames: list[object]) -> None:
    browser.complaints.clear()
    write_report(tmp_path / "bare.html", None, frames, {}, title="No video")  # type: ignore[arg-type]
    browser.open(tmp_path / "bare.html")
    browser.press("End")
    assert browser.value("now === data.end_us")
    browser.press(" ", "Space", " ")
    assert browser.complaints == []
