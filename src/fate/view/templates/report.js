"use strict";
// The page's moving parts: one moment `now` (µs of the recording) that the video, the scrubber, the plots and the
// table of tracks share. Whoever moves it calls seek(); the video calls show() as it plays.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const video = byId("video"), scrubber = byId("scrubber");
const clock = data.clock;
const span = [data.start_us, data.end_us];
const MARGIN = { left: 46, right: 10, top: 8, bottom: 22 };
let now = clock ? clock.first_us : data.start_us;
const watchers = [];  // called with `now` whenever it moves

// ---- words for numbers ------------------------------------------------------------------------------------------

const seconds = (us, digits = 3) => ((us - data.origin_us) / 1e6).toFixed(digits) + " s";
function eventsPerSecond(value) {
  if (value >= 1e6) return (value / 1e6).toFixed(2) + " Mev/s";
  return value >= 1e3 ? (value / 1e3).toFixed(1) + " kev/s" : value.toFixed(0) + " ev/s";
}
function short(value) {
  if (value >= 1e6) return +(value / 1e6).toPrecision(3) + " M";
  return value >= 1e3 ? +(value / 1e3).toPrecision(3) + " k" : String(+value.toPrecision(3));
}
const colourOf = (classId) => `var(--c${classId % 8})`;

// ---- time -------------------------------------------------------------------------------------------------------

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const lastFrame = clock ? clock.num_frames - 1 : 0;
const frameOf = (us) => clamp(Math.round((us - clock.first_us) / clock.step_us), 0, lastFrame);
const timeOf = (frame) => clock.first_us + Math.round(frame * clock.step_us);
const shownFrame = () => clamp(Math.floor(video.currentTime * clock.fps + 1e-3), 0, lastFrame);

function show(us) {
  now = us;
  for (const watch of watchers) watch(us);
}

function seek(us) {
  if (!video) return show(clamp(us, ...span));
  const frame = frameOf(us);
  video.currentTime = (frame + 0.5) / clock.fps;  // the middle of a picture: rounding cannot land on its neighbour
  show(timeOf(frame));
}

function stepFrames(count) {
  if (!video) return seek(now + count * (span[1] - span[0]) / 200);
  video.pause();
  seek(timeOf(clamp(frameOf(now) + count, 0, lastFrame)));
}

function togglePlay() {
  if (!video) return;
  if (!video.paused) return video.pause();
  if (video.ended || shownFrame() >= lastFrame) seek(clock.first_us);
  video.play().catch((error) => { byId("trouble").textContent = "The video cannot be played: " + error.message; });
}

// ---- drawing ----------------------------------------------------------------------------------------------------

function draw(parent, name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= 0.75 * rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return ticks;
}

// An empty plot over the recording's time; `paint(svg, x, box)` fills it, and a click or drag on it seeks.
function timePlot(figure, height, paint) {
  const svg = draw(figure, "svg", { role: "img", "aria-label": figure.dataset.label, height });
  let playhead, box, x;
  const place = (us) => {
    if (!playhead) return;
    playhead.setAttribute("x1", x(us));
    playhead.setAttribute("x2", x(us));
  };
  function redraw() {
    const width = Math.max(240, figure.clientWidth);
    box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    x = (us) => box.left + (clamp(us, ...span) - span[0]) / (span[1] - span[0]) * (box.right - box.left);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const ticks = niceTicks((span[0] - data.origin_us) / 1e6, (span[1] - data.origin_us) / 1e6, width / 110);
    for (const tick of ticks) {
      const at = x(tick * 1e6 + data.origin_us);
      draw(svg, "line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom });
      draw(svg, "text", { x: at, y: height - 6, "text-anchor": at > box.right - 14 ? "end" : "middle" }, +tick.toFixed(6) + " s");
    }
    paint(svg, x, box);
    playhead = draw(svg, "line", { class: "playhead", y1: box.top - 4, y2: box.bottom });
    place(now);
  }
  new ResizeObserver(redraw).observe(figure);
  watchers.push(place);
  const toTime = (event) => {
    const bounds = svg.getBoundingClientRect();
    const share = ((event.clientX - bounds.left) * (svg.viewBox.baseVal.width / bounds.width) - box.left) / (box.right - box.left);
    return span[0] + clamp(share, 0, 1) * (span[1] - span[0]);
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    svg.setPointerCapture(event.pointerId);
    if (video) video.pause();
    seek(toTime(event));
  });
  svg.addEventListener("pointermove", (event) => { if (svg.hasPointerCapture(event.pointerId)) seek(toTime(event)); });
}

function valueAxis(svg, box, high, label) {
  const y = (value) => box.bottom - value / high * (box.bottom - box.top);
  for (const tick of niceTicks(0, high, 4)) {
    draw(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) });
    draw(svg, "text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, label(tick));
  }
  return y;
}

// The points of a course as an SVG path; a gap (null) lifts the pen.
function path(times, values, x, y) {
  let pen = "M", out = "";
  values.forEach((value, index) => {
    if (value === null) { pen = "M"; return; }
    out += `${pen}${x(times[index]).toFixed(1)},${y(value).toFixed(1)}`;
    pen = "L";
  });
  return out;
}

function nearest(times, us) {
  let low = 0, high = times.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (times[middle] <= us) low = middle; else high = middle; }
  return us - times[low] <= times[high] - us ? low : high;
}

// ---- the plots --------------------------------------------------------------------------------------------------

function ratePlot() {
  const figure = byId("rate"), { t_us: times, per_s: rates } = data.rate;
  timePlot(figure, 130, (svg, x, box) => {
    const y = valueAxis(svg, box, Math.max(1, ...rates) * 1.05, short);
    const line = path(times, rates, x, y);
    draw(svg, "path", { d: `${line}L${x(times.at(-1))},${box.bottom}L${x(times[0])},${box.bottom}Z`, fill: "var(--rate-fill)" });
    draw(svg, "path", { d: line, fill: "none", stroke: "var(--rate)", "stroke-width": 1.5 });
  });
  watchers.push((us) => { byId("rate-now").textContent = eventsPerSecond(rates[nearest(times, us)]); });
}

function boxesPlot() {
  const { t_us: times, by_class: courses } = data.boxes;
  const known = data.classes.filter((each) => courses[each.id]);
  const most = Math.max(1, ...known.flatMap((each) => courses[each.id]));
  timePlot(byId("boxes"), 130, (svg, x, box) => {
    const y = valueAxis(svg, box, most * 1.08, short);
    known.forEach((each, index) => {
      const dashes = ["none", "7 3", "2 3", "9 3 2 3"][index % 4];  // told apart without colour too
      draw(svg, "path", { d: path(times, courses[each.id], x, y), fill: "none", stroke: colourOf(each.id), "stroke-width": 2, "stroke-dasharray": dashes });
    });
  });
  watchers.push((us) => {
    const index = nearest(times, us);
    for (const each of known) {
      const value = courses[each.id][index];
      byId("boxes-now-" + each.id).textContent = value === null ? "–" : value.toFixed(1);
    }
  });
}

function tracksPlot() {
  const lanes = [], places = new Map();  // each track into the first lane that is free
  for (const row of data.tracks.rows) {
    let lane = lanes.findIndex((end) => end < row.first_us);
    if (lane < 0) lane = lanes.push(0) - 1;
    lanes[lane] = row.last_us;
    places.set(row.id, lane);
  }
  const thick = clamp(160 / lanes.length, 3, 16);
  timePlot(byId("lanes"), MARGIN.top + MARGIN.bottom + lanes.length * thick, (svg, x, box) => {
    for (const row of data.tracks.rows) {
      const left = x(row.first_us), y = box.top + places.get(row.id) * thick;
      const bar = draw(svg, "rect", { x: left, y: y + 1, width: Math.max(2, x(row.last_us) - left), height: thick - 2, rx: 2, fill: colourOf(row.class_id) });
      draw(bar, "title", {}, `#${row.id} ${row.name}, ${seconds(row.first_us)} to ${seconds(row.last_us)}`);
    }
  });
}

function latencyPlot() {
  const figure = byId("latency"), { edges_ms: edges, stages, budget_ms: budget } = data.latency;
  const row = 44, top = 22, height = top + stages.length * row + 24;
  const svg = draw(figure, "svg", { role: "img", "aria-label": figure.dataset.label, height });
  new ResizeObserver(() => {
    const width = Math.max(240, figure.clientWidth), left = 64, right = width - 14;
    const low = Math.log10(Math.min(edges[0], budget ?? Infinity) * 0.95);
    const high = Math.log10(Math.max(edges.at(-1), budget ?? 0) * 1.15);
    const x = (ms) => left + (Math.log10(ms) - low) / (high - low) * (right - left);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const factors = (right - left) / (high - low) > 150 ? [1, 2, 5] : [1];
    let written = -8; // up to here there are words; the last label stands left of its line and could run into them
    for (let power = Math.floor(low); power <= high; power++) for (const factor of factors) {
      const ms = factor * 10 ** power, at = x(ms);
      if (at < left || at > right) continue;
      draw(svg, "line", { class: "grid", x1: at, x2: at, y1: top, y2: height - 24 });
      const label = ms >= 1000 ? +(ms / 1000).toPrecision(1) + " s" : +ms.toPrecision(1) + " ms", wide = 7 * label.length, last = at > right - 24;
      const begin = last ? at - wide : at - wide / 2;
      if (begin < written + 8) continue;
      draw(svg, "text", { x: at, y: height - 8, "text-anchor": last ? "end" : "middle" }, label);
      written = begin + wide;
    }
    stages.forEach((stage, index) => {
      const base = top + (index + 1) * row, most = Math.max(...stage.counts);
      draw(svg, "text", { x: left - 8, y: base - 6, "text-anchor": "end" }, stage.name);
      stage.counts.forEach((count, bin) => {
        if (!count) return;
        const tall = Math.max(1.5, count / most * (row - 8)), from = x(edges[bin]);
        draw(svg, "rect", { class: stage.name === "total" ? "bar total" : "bar", x: from, y: base - tall, width: Math.max(1, x(edges[bin + 1]) - from - 0.5), height: tall });
      });
      draw(svg, "line", { class: "axis", x1: left, x2: right, y1: base, y2: base });
    });
    if (budget) {
      const at = x(budget), toLeft = at > (left + right) / 2;
      draw(svg, "line", { class: "budget", x1: at, x2: at, y1: top - 6, y2: height - 24 });
      draw(svg, "text", { class: "budget", x: at + (toLeft ? -6 : 6), y: 13, "text-anchor": toLeft ? "end" : "start" }, `budget ${+budget.toPrecision(4)} ms`);
    }
  }).observe(figure);
}

// ---- player, table, keys, theme ---------------------------------------------------------------------------------

function startPlayer() {
  const packed = byId("video-data");
  if (packed) {  // a blob rather than a data address: every browser can seek in it
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
    video.src = URL.createObjectURL(new Blob([bytes], { type: "video/mp4" }));
  } else {
    video.src = video.dataset.href;
  }
  video.addEventListener("error", () => { byId("trouble").textContent = packed ? "This browser cannot play the video (H.264)." : "The video " + video.dataset.href + " was not found beside this page."; });
  video.addEventListener("loadedmetadata", () => {
    byId("stage").classList.toggle("wide", video.videoWidth > 1.7 * video.videoHeight && video.videoWidth > 1000);
  });
  const button = byId("play");
  const label = () => {
    button.textContent = video.paused ? "▶ Play" : "❚❚ Pause";
    button.setAttribute("aria-label", video.paused ? "Play" : "Pause");
  };
  for (const name of ["play", "pause", "ended"]) video.addEventListener(name, label);
  const follow = () => {
    if (!video.paused) { show(timeOf(shownFrame())); requestAnimationFrame(follow); }
  };
  video.addEventListener("play", () => requestAnimationFrame(follow));
  video.addEventListener("ended", () => show(timeOf(lastFrame)));
  video.addEventListener("click", togglePlay);
  button.addEventListener("click", togglePlay);
  byId("back").addEventListener("click", () => stepFrames(-1));
  byId("forward").addEventListener("click", () => stepFrames(1));
  byId("speed").addEventListener("change", (event) => { video.playbackRate = Number(event.target.value); });
  scrubber.max = lastFrame;
  scrubber.addEventListener("input", () => { video.pause(); seek(timeOf(Number(scrubber.value))); });
  watchers.push((us) => {
    scrubber.value = frameOf(us);
    scrubber.setAttribute("aria-valuetext", seconds(us));
    byId("time").textContent = `${seconds(us)} / ${seconds(timeOf(lastFrame))}`;
  });
}

function startTracks() {
  const body = byId("tracks").tBodies[0], rows = [...body.rows];
  for (const row of rows) row.addEventListener("click", () => { if (video) video.pause(); seek(Number(row.dataset.t)); });
  const heads = [...byId("tracks").tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const upward = head.getAttribute("aria-sort") !== "ascending";
    for (const each of heads) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", upward ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
    rows.sort((one, other) => {
      const [a, b] = [key(one), key(other)], order = isNaN(a) ? a.localeCompare(b) : a - b;
      return upward ? order : -order;
    });
    body.append(...rows);
  }));
  watchers.push((us) => {
    for (const row of rows) row.classList.toggle("live", Number(row.dataset.t) <= us && us <= Number(row.dataset.end));
  });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target.tagName;
  const owns = { " ": ["BUTTON", "SELECT"], ArrowLeft: ["SELECT"], ArrowRight: ["SELECT"], Home: ["SELECT"], End: ["SELECT"] };
  if ((owns[event.key] ?? []).includes(target)) return;  // the focused control has its own use for the key
  const second = clock ? 1e6 * clock.step_us * clock.fps / 1e6 : (span[1] - span[0]) / 20;  // one of the video
  const actions = {
    " ": togglePlay, ",": () => stepFrames(-1), ".": () => stepFrames(1),
    ArrowLeft: () => seek(now - second), ArrowRight: () => seek(now + second),
    Home: () => seek(span[0]), End: () => seek(span[1]),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
});

function startTheme() {
  const button = byId("theme"), root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("fate-theme"); } catch { return null; } };
  const set = (theme) => {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light colours" : "Dark colours";
  };
  set(stored() ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!stored()) set(dark.matches ? "dark" : "light"); });
  button.addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    set(theme);
    try { localStorage.setItem("fate-theme", theme); } catch { /* a page without storage forgets the choice */ }
  });
}

function showMoreBeside() {  // a table that is wider than the page says so, as long as something is hidden at its right
  for (const part of document.querySelectorAll(".scroll")) {
    const look = () => part.classList.toggle("more", part.scrollLeft + part.clientWidth < part.scrollWidth - 2);
    part.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(part);
  }
}

startTheme();
showMoreBeside();
if (video) startPlayer();
if (data.rate) ratePlot();
if (data.boxes.t_us.length) boxesPlot();
if (data.tracks && data.tracks.rows.length) { tracksPlot(); startTracks(); }
if (data.latency) latencyPlot();
if (video) video.addEventListener("loadeddata", () => seek(now), { once: true });
show(now);
