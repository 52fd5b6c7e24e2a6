"use strict";
// The page of fate live. Pictures come as binary websocket messages (see live_page/messages.py) and are kept for a while,
// so that a pause can step through them. Each picture is confirmed when it is drawn; a page that draws slowly, or is
// hidden, therefore gets fewer pictures.

const byId = (id) => document.getElementById(id);
const KEPT_BYTES = 64e6, KEPT = 600;  // pictures that can be stepped through
const SPAN_S = 10;                    // of the plots
const FIRST_WAIT_S = 0.5, LONGEST_WAIT_S = 10;  // between two attempts to connect
const WRONG_TOKEN = 4403;             // close code of the server

let run = null;          // the latest message about the run
let kept = [];           // pictures, oldest first
let keptBytes = 0;
let shown = null;        // the picture on the screen
let paused = false;
let socket = null, wait = FIRST_WAIT_S, retryAt = 0;
let isRefused = false;   // whether the token of this page is no longer valid
let unconfirmed = 0;     // pictures that have come since the last confirmation
let isDue = false;       // whether a redraw is scheduled
let lookup = null;       // colours of a byte of a picture: 256 × 4 pixels
const rates = [], latencies = [];  // [seconds, value]

// ---- words for numbers ------------------------------------------------------------------------------------------

const whole = (value) => value.toLocaleString("en").replaceAll(",", "\u202f");
function eventsPerSecond(value) {
  if (value >= 1e6) return (value / 1e6).toFixed(2) + " Mev/s";
  return value >= 1e3 ? (value / 1e3).toFixed(1) + " kev/s" : value.toFixed(0) + " ev/s";
}
const milliseconds = (value) => (value < 100 ? value.toFixed(1) : value.toFixed(0)) + " ms";
const setText = (id, text) => { const node = byId(id); if (node.textContent !== text) node.textContent = text; };

// ---- the connection ---------------------------------------------------------------------------------------------

function connect() {
  retryAt = 0;
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/pictures${location.search}`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = (message) => receive(message.data);
  unconfirmed = 0;
  socket.onclose = (event) => {
    isRefused = event.code === WRONG_TOKEN;
    retryAt = Date.now() + 1000 * wait;
    setTimeout(connect, 1000 * wait);
    wait = Math.min(2 * wait, LONGEST_WAIT_S);
    showState();
  };
  showState();
}

function receive(buffer) {
  wait = FIRST_WAIT_S, isRefused = false;
  const length = new DataView(buffer).getUint32(0, true);
  const content = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  if (content.kind === "run") return beginRun(content);
  unconfirmed += 1;
  if (!run || !run.sensor) return confirm();
  const picture = { ...content, pixels: new Uint8Array(buffer, 4 + length) };
  keep(picture);
  measure(picture);
  run.recording = content.recording;
  showRecording();
  if (paused) confirm(); else show(picture);
}

function confirm() {
  if (unconfirmed && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ shown: unconfirmed }));
  unconfirmed = 0;
}

function keep(picture) {
  kept.push(picture);
  keptBytes += picture.pixels.length;
  while (kept.length > KEPT || (keptBytes > KEPT_BYTES && kept.length > 2)) keptBytes -= kept.shift().pixels.length;
}

function beginRun(content) {
  const isOther = !run || run.session !== content.session;
  run = content;
  if (isOther) {
    kept = [], keptBytes = 0, paused = false;
    rates.length = latencies.length = 0;
    fillPalettes();
  }
  if (run.sensor) prepare();
  if (run.counts) showCounts(run.counts);
  showAbout();
  showRecording();
  showState();
}

function prepare() {
  const [height, width] = run.sensor, canvas = byId("events"), view = byId("view");
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width, canvas.height = height;
    view.style.aspectRatio = `${width} / ${height}`;
    view.style.maxWidth = `calc(72vh * ${width / height})`;
  }
  const slider = byId("threshold"), lowest = lowestScore();
  if (+slider.min !== lowest) {
    slider.min = lowest;
    slider.value = lowest;
    setText("lowest", (+slider.value).toFixed(2));
  }
}

function lowestScore() { return Math.floor(run.threshold * 100) / 100; }

// ---- what is shown ----------------------------------------------------------------------------------------------

function showState() {
  const isOpen = socket && socket.readyState === WebSocket.OPEN;
  const words = { starting: "Starting", loading: "Loading", waiting: "Waiting", running: "Live", ended: "Ended" };
  let state = "connecting", text = "Connecting…", cover = "";
  if (isRefused) {
    state = "lost", cover = "The token of this page is no longer valid, because fate live was started again. Open the new address that the terminal printed.";
  } else if (run && run.state === "ended") {
    state = "ended", text = "Ended", cover = `Ended: ${run.reason}.`;
  } else if (isOpen && run) {
    state = run.state, text = words[state];
    if (state === "loading") cover = `Loading the detector ${run.model}…`;
    if (state === "waiting") cover = `Waiting for events from ${run.name}…`;
  } else if (retryAt) {
    state = "lost", cover = "The detector does not answer.";
  }
  if (retryAt && !isOpen) {
    const seconds = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
    if (state !== "ended") text = "Not connected";
    if (!isRefused) cover += ` Next attempt to connect ${seconds ? `in ${seconds} s` : "now"}.`;
  } else if (paused && (state === "running" || state === "ended")) {
    state = "paused", text = "Paused";
  }
  byId("record").disabled = !isOpen || run?.state !== "running";
  byId("state").dataset.state = state;
  setText("state", text);
  setText("cover", cover.trim());
  byId("view").classList.toggle("stale", !isOpen && state !== "ended");
}

function showAbout() {
  if (!run.hz) return setText("about", run.model ? `${run.model}` : "");
  const [height, width] = run.sensor;
  const parts = [`${run.model} on ${run.device}`, `${+run.hz.toFixed(2)} windows per second, each ${+(run.window_us / 1000).toFixed(2)} ms long`,
    `${width}×${height} pixels`, `scores from ${lowestScore().toFixed(2)}`];
  setText("about", parts.join(" · "));
}

function show(picture) {
  shown = picture;
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
    confirm();
  });
}

function redraw() { if (shown) requestAnimationFrame(draw); }

function draw() {
  if (!shown || !run.sensor) return;
  drawEvents(byId("events").getContext("2d"));
  const canvas = byId("boxes"), box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) canvas.width = width, canvas.height = height;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  drawBoxes(context, width / run.sensor[1], ratio);
  const line = shown.line;
  setText("time", `${(line.t_us / 1e6).toFixed(3)} s`);
  const index = kept.indexOf(shown), behind = kept.length - 1 - index;
  setText("where", paused ? (behind ? `${behind} ${behind === 1 ? "picture" : "pictures"} before the newest` : "newest picture") : "");
  showCounts(run.state === "ended" && run.counts && !behind ? run.counts : shown.counts);
  showList();
}

function visible() {
  const lowest = +byId("threshold").value, line = shown.line;
  return line.scores.map((score, row) => row).filter((row) => line.scores[row] >= lowest || +byId("threshold").min === lowest);
}

const nameOf = (row) => run.classes[shown.line.class_ids[row]] ?? `class ${shown.line.class_ids[row]}`;
const trackOf = (row) => { const track = (shown.line.track_ids || [])[row]; return track >= 0 ? `#${track}` : ""; };
const coloursOf = (row) => run.colours[shown.line.class_ids[row] % run.colours.length].map((rgb) => `rgb(${rgb})`);

function drawEvents(context) {
  const [height, width] = run.sensor, image = context.createImageData(width, height);
  const out = new Uint32Array(image.data.buffer), pixels = shown.pixels;
  let at = 0;
  for (let index = 0; index < pixels.length; index++) {
    const from = 4 * pixels[index], last = Math.min(4, out.length - at);
    for (let pixel = 0; pixel < last; pixel++) out[at++] = lookup[from + pixel];
  }
  context.putImageData(image, 0, 0);
}

function drawBoxes(context, scale, ratio) {
  const rows = visible(), size = Math.round(13 * ratio), line = Math.max(2, Math.round(2 * ratio));
  const corners = new Map(rows.map((row) => [row, shown.line.boxes[row].map((value) => value * scale)]));
  context.lineWidth = line;
  for (const row of [...rows].reverse()) {  // the highest score is drawn last, on top
    const [x1, y1, x2, y2] = corners.get(row);
    context.strokeStyle = coloursOf(row)[0];
    context.strokeRect(x1 + line / 2, y1 + line / 2, Math.max(1, x2 - x1 - line), Math.max(1, y2 - y1 - line));
  }
  context.font = `600 ${size}px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  const taken = [];
  for (const row of rows) {  // a label is above its box, below it if another label is there, or inside
    const [x1, y1, , y2] = corners.get(row), [colour, ink] = coloursOf(row);
    const text = `${trackOf(row)} ${nameOf(row)} ${shown.line.scores[row].toFixed(2)}`.trim();
    const width = context.measureText(text).width + 0.6 * size, height = 1.35 * size, lowest = context.canvas.height - height;
    const left = Math.max(0, Math.min(x1, context.canvas.width - width)), inside = Math.max(0, Math.min(y1, lowest));
    const tops = [y1 - height, y2, inside].filter((top) => top >= 0 && top <= lowest);
    const isFree = (top) => !taken.some((other) => left < other.right && other.left < left + width
      && top < other.top + height && other.top < top + height);
    const top = tops.find(isFree) ?? inside;
    taken.push({ left, right: left + width, top });
    context.fillStyle = colour;
    context.fillRect(left, top, width, height);
    context.fillStyle = ink;
    context.fillText(text, left + 0.3 * size, top + height / 2 + 0.05 * size);
  }
}

function showCounts(counts) {
  setText("windows", whole(counts.windows));
  setText("total", whole(counts.boxes));
  setText("dropped", whole(counts.windows_dropped));
  setText("late", whole(counts.windows_late));
  byId("dropped").classList.toggle("bad", counts.windows_dropped > 0);
}

function showList() {
  const body = byId("list"), rows = visible();
  while (body.rows.length > rows.length) body.deleteRow(-1);
  while (body.rows.length < rows.length) {
    const row = body.insertRow();
    row.insertCell().append(document.createElement("i"), document.createElement("span"));
    for (let cell = 0; cell < 3; cell++) row.insertCell();
  }
  rows.forEach((row, index) => {
    const [first, track, score, size] = body.rows[index].cells, [x1, y1, x2, y2] = shown.line.boxes[row];
    first.firstChild.style.background = coloursOf(row)[0];
    const texts = [[first.lastChild, nameOf(row)], [track, trackOf(row) || "–"], [score, shown.line.scores[row].toFixed(2)],
      [size, `${Math.round(x2 - x1)}×${Math.round(y2 - y1)}`]];
    for (const [node, text] of texts) if (node.textContent !== text) node.textContent = text;
  });
  byId("none").hidden = rows.length > 0;
}

// ---- rate and latency -------------------------------------------------------------------------------------------

const seen = [];  // [seconds, events so far] of the last second
function measure(picture) {
  const now = picture.at_s;
  if (picture.seen !== undefined) {
    if (seen.length && (now < seen[0][0] || picture.seen < seen[0][1])) seen.length = 0;
    seen.push([now, picture.seen]);
    while (seen.length > 2 && seen[1][0] < now - 0.5) seen.shift();
    const [first, before] = seen[0];
    if (now > first) rates.push([now, (picture.seen - before) / (now - first)]);
  }
  for (const value of picture.latency_ms) latencies.push([now, value]);
  for (const list of [rates, latencies]) while (list.length && list[0][0] < now - SPAN_S) list.shift();
}

function showGauges() {
  if (!paused && rates.length) setText("rate", eventsPerSecond(rates.at(-1)[1]));
  if (rates.length) plot("rate-plot", rates, 0), setText("rate-most", eventsPerSecond(Math.max(...rates.map((pair) => pair[1]))));
  if (run && run.budget_ms) setText("budget", milliseconds(run.budget_ms));
  if (latencies.length) {
    const sorted = latencies.map((pair) => pair[1]).sort((a, b) => a - b);
    const p99 = sorted[Math.min(sorted.length - 1, Math.floor(0.99 * sorted.length))];
    if (!paused) setText("latency", milliseconds(latencies.at(-1)[1]));
    setText("p99", milliseconds(p99));
    byId("p99").className = p99 > run.budget_ms ? "bad" : "";
    plot("latency-plot", latencies, run.budget_ms);
  }
}

function plot(id, pairs, budget) {
  // at most one point per column; of several, the highest, so that peaks are seen
  const columns = 120, [width, height] = [240, 44], end = pairs.at(-1)[0];
  const most = 1.08 * Math.max(budget, ...pairs.map((pair) => pair[1])) || 1, highest = new Map();
  for (const [at, value] of pairs) {
    const column = Math.round(columns * (1 - (end - at) / SPAN_S));
    highest.set(column, Math.max(value, highest.get(column) ?? 0));
  }
  const points = [...highest].sort((a, b) => a[0] - b[0])
    .map(([column, value]) => `${(width * column / columns).toFixed(1)},${(height * (1 - value / most)).toFixed(1)}`);
  const svg = byId(id), x = (point) => point.split(",")[0];
  svg.querySelector(".line").setAttribute("d", `M${points.join("L")}`);
  svg.querySelector(".area").setAttribute("d", `M${x(points[0])},${height}L${points.join("L")}L${x(points.at(-1))},${height}Z`);
  const y = height * (1 - budget / most);
  if (budget) svg.querySelector(".budget").setAttribute("d", `M0,${y.toFixed(1)}H${width}`);
}

// ---- controls ---------------------------------------------------------------------------------------------------

function setPaused(value) {
  paused = value;
  const button = byId("pause");
  button.textContent = paused ? "Continue" : "Pause";
  button.setAttribute("aria-pressed", paused);
  if (!paused && kept.length) show(kept.at(-1)); else redraw();
  showState();
}

function step(count) {
  if (!shown) return;
  if (!paused) setPaused(true);
  const index = kept.indexOf(shown);  // -1 if it is no longer kept
  shown = kept[Math.max(0, Math.min(kept.length - 1, index + count))];
  redraw();
}

function setThreshold(value) {
  const slider = byId("threshold");
  slider.value = value;
  setText("lowest", (+slider.value).toFixed(2));
  redraw();
}

function fillPalettes() {
  const select = byId("palette"), names = Object.keys(run.palettes);
  if (select.options.length !== names.length) select.replaceChildren(...names.map((name) => new Option(name, name)));
  choosePalette(isDark() ? "dark" : "light");
}

function choosePalette(name) {
  byId("palette").value = name;
  const colours = [...run.palettes[name], run.palettes[name][0]]
    .map(([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0);
  lookup = new Uint32Array(1024);
  for (let byte = 0; byte < 256; byte++) for (let pixel = 0; pixel < 4; pixel++) lookup[4 * byte + pixel] = colours[(byte >> (2 * pixel)) & 3];
  byId("view").style.background = `rgb(${run.palettes[name][0]})`;
  redraw();
}

function nextPalette() {
  const select = byId("palette");
  choosePalette(select.options[(select.selectedIndex + 1) % select.options.length].value);
}

function takeSnapshot() {
  if (!shown) return;
  const [height, width] = run.sensor, factor = Math.max(1, Math.round(1280 / width));
  const small = document.createElement("canvas"), large = document.createElement("canvas");
  small.width = width, small.height = height, large.width = width * factor, large.height = height * factor;
  drawEvents(small.getContext("2d"));
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, large.width, large.height);
  drawBoxes(context, factor, Math.max(1, large.width / 900));
  large.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${run.name.replace(/[^\w.-]+/g, "_")}_${shown.line.t_us}us.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }, "image/png");
}

function toggleRecording() {
  if (byId("record").hidden || byId("record").disabled) return;
  socket.send(JSON.stringify({ record: !run.recording.active }));
}

function showRecording() {
  const recording = run.recording, button = byId("record");
  button.hidden = byId("record-key").hidden = !recording;
  if (!recording) return;
  button.setAttribute("aria-pressed", recording.active);
  button.lastChild.textContent = recording.active ? "Stop recording" : "Record";
  setText("recording", recording.note || "");
  byId("recording").classList.toggle("bad", Boolean(recording.failed));
}

const darkSetting = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (darkSetting.matches ? "dark" : "light")) === "dark";
const nameTheme = () => { byId("theme").textContent = isDark() ? "Light colours" : "Dark colours"; };
byId("theme").onclick = () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
  if (run) choosePalette(isDark() ? "dark" : "light");
};
darkSetting.addEventListener("change", nameTheme);
nameTheme();

byId("pause").onclick = () => setPaused(!paused);
byId("step").onclick = () => step(1);
byId("back").onclick = () => step(-1);
byId("snapshot").onclick = takeSnapshot;
byId("record").onclick = toggleRecording;
byId("threshold").oninput = (event) => setThreshold(event.target.value);
byId("palette").onchange = (event) => choosePalette(event.target.value);
const KEYS = {
  " ": () => setPaused(!paused), ".": () => step(1), ",": () => step(-1), s: takeSnapshot, r: toggleRecording, p: nextPalette,
  "+": () => setThreshold(+byId("threshold").value + 0.05), "=": () => setThreshold(+byId("threshold").value + 0.05),
  "-": () => setThreshold(+byId("threshold").value - 0.05),
};
addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.tagName === "SELECT" || (event.target.tagName === "BUTTON" && event.key === " ")) return;
  event.preventDefault();
  act();
});
addEventListener("resize", redraw);
setInterval(() => { showGauges(); if (retryAt) showState(); }, 250);
connect();
