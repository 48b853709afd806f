"use strict";
// Draws a summary.json. What others wrote goes into the page as text, never as markup.
const summary = JSON.parse(document.getElementById("summary").textContent);
const cells = summary.cells;
// Reports of before there was anything else are of requests.
const measure = summary.measure || { key: "requests_per_s", name: "Requests per second", unit: "requests/s", each: "request", smaller_is_better: false, is_rate: true, places: 0 };
const page = document.getElementById("report");

function make(parent, name, words, className) {
  const node = document.createElement(name);
  if (words !== undefined) node.textContent = words;
  if (className) node.className = className;
  parent.append(node);
  return node;
}
const whole = (value) => Math.round(value).toLocaleString("en");
const shown = (value) => value.toLocaleString("en", { minimumFractionDigits: measure.places, maximumFractionDigits: measure.places });
const short = (value) => {
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(3) + " M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(3) + " k";
  return String(+value.toPrecision(3));
};

// Every figure of a cell, once, with its name.
function figures(cell) {
  const direct = cell.kernel_sockets ? cell.kernel_xdp : cell.kernel;
  const several = summary.plan.profile.length > 1;
  const ours = several ? "overfly, " + cell.profile : "overfly";
  if (cell.shares_kernel) return cell.overfly ? [{ name: ours, figure: cell.overfly }] : [];
  return [["kernel", direct], ["kernel (sockets)", cell.kernel_sockets], ["kernel, as found", cell.kernel_as_found], ["kernel, busy polling", cell.kernel_busy_poll], ["null server", cell.null_server], [ours, cell.overfly]]
    .filter(([, figure]) => figure).map(([name, figure]) => ({ name, figure }));
}
const names = [];
for (const cell of cells) for (const { name } of figures(cell)) if (!names.includes(name)) names.push(name);
const colourOf = (name) => {
  if (name === "kernel") return "--c0";
  if (name.startsWith("kernel (")) return "--c4";
  if (name === "kernel, busy polling") return "--c3";
  if (name.startsWith("kernel,")) return "--c1";
  if (name === "null server") return "--c5";
  const ours = names.filter((its) => its.startsWith("overfly"));
  return ["--c2", "--c5", "--c4", "--c3"][ours.indexOf(name) % 4];
};
const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

function gainInWords(cell) {
  if (cell.gain === undefined) return "";
  const where = cell.gain_interval;
  if (cell.gain_disturbed) return "~" + cell.gain.toFixed(1);
  if (where && where.low <= 1 && where.high >= 1) return "no difference seen";
  if (!where) return cell.gain.toFixed(1) + ", of a run each: no interval";
  const sure = where.confidence >= 0.95 ? "" : ", " + Math.round(where.confidence * 100) + " %";
  return cell.gain.toFixed(2) + " (" + where.low.toFixed(2) + " to " + where.high.toFixed(2) + sure + ")";
}

// The axes that have more than one value, numbers that a chart can go along first.
const AXES = [["instances", "instances"], ["workers", "workers"], ["connections", "connections"], ["payload_bytes", "payload, bytes"]];
const distinct = (key) => [...new Set(cells.map((cell) => cell[key]))];
const axis = AXES.find(([key]) => distinct(key).length > 1) || ["payload_bytes", "payload, bytes"];

// Cells that differ in nothing but one key.
function groups(key) {
  const found = new Map();
  for (const cell of cells) {
    const rest = [...AXES.map(([its]) => its), "rate_per_s"].filter((its) => its !== key && distinct(its).length > 1);
    const words = rest.map((its) => its === "payload_bytes" ? cell[its] + " B" : its === "rate_per_s" ? cell[its] + "/s" : cell[its] + " " + its);
    if (distinct("connection").length > 1) words.unshift(cell.connection);
    if (distinct("link").length > 1) words.unshift(cell.link);
    const name = words.join(", ");
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(cell);
  }
  return found;
}

const drawings = [];
let charts;

function frame(title, note, series) {
  const figure = make(charts, "figure");
  const caption = make(figure, "figcaption", title);
  if (note) make(caption, "small", note);
  const keys = make(figure, "div", undefined, "keys");
  for (const { label, variable } of series) {
    const key = make(keys, "span");
    const mark = make(key, "i");
    mark.style.background = `var(${variable})`;
    key.append(label);
  }
  return { figure, place: make(figure, "div"), tip: make(figure, "div", undefined, "tip") };
}

// A chart that is drawn again when its width or the colours change. `options(width)` and `data` are uPlot's.
function draw(parts, options, data, words) {
  let plot;
  const again = () => {
    if (plot) plot.destroy();
    const width = Math.max(240, parts.place.clientWidth || 320);
    const theirs = options(width);
    const line = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    plot = new uPlot({
      width, height: 260, legend: { show: false }, cursor: { points: { show: true }, drag: { x: false, y: false } }, ...theirs,
      axes: theirs.axes.map((its) => ({ ...line, ...its })),
      hooks: { setCursor: [(its) => {
        const index = its.cursor.idx;
        const text = index === null || index === undefined || its.cursor.left < 0 ? "" : words(index);
        parts.tip.style.display = text ? "block" : "none";
        parts.tip.textContent = text;
        parts.tip.style.whiteSpace = "pre";
        const left = parts.place.offsetLeft + its.bbox.left / devicePixelRatio + its.cursor.left + 12;
        parts.tip.style.left = Math.min(left, parts.figure.clientWidth - parts.tip.offsetWidth - 4) + "px";
        parts.tip.style.top = parts.place.offsetTop + 4 + "px";
      }] },
    }, data, parts.place);
  };
  // All are drawn at the end: until then more figures may come beside this one and take of its width.
  drawings.push(again);
}

// Groups of bars: category i has the slots i * (n + 1) … i * (n + 1) + n - 1.
function bars(title, note, unit, categories, series, floor) {
  const n = series.length;
  const slots = categories.flatMap((_, i) => Array.from({ length: n + 1 }, (_, j) => i * (n + 1) + j));
  const values = series.map((its, j) => slots.map((slot) => slot % (n + 1) === j ? its.values[Math.floor(slot / (n + 1))] ?? null : null));
  const parts = frame(title, unit === "times" ? note : `${note}; ${unit}`, series);
  const centres = categories.map((_, i) => i * (n + 1) + (n - 1) / 2);
  const wide = (label) => label.length * 7;
  draw(parts, (width) => {
    const room = (width - 60) / categories.length;
    const turned = categories.some((label) => wide(label) > room);
    return {
      scales: { x: { time: false, range: [-0.75, slots.length - 1.25] }, y: { range: (_, low, high) => [0, Math.max(high, floor || 0) * 1.08 || 1] } },
      axes: [
        { splits: () => centres, values: () => categories, rotate: turned ? 40 : 0, size: turned ? 30 + Math.max(...categories.map(wide)) * 0.62 : 34, grid: { show: false } },
        { values: (_, splits) => splits.map(short), size: 56 },
      ],
      height: turned ? 340 : 260,
      series: [{}, ...series.map((its) => ({ label: its.label, fill: colour(its.variable), stroke: colour(its.variable), paths: uPlot.paths.bars({ size: [0.92, 90] }), points: { show: false } }))],
    };
  }, [slots, ...values], (slot) => {
    const [i, j] = [Math.floor(slots[slot] / (n + 1)), slots[slot] % (n + 1)];
    if (j >= n || series[j].values[i] === undefined) return "";
    return categories[i] + "\n" + series[j].label + ": " + short(series[j].values[i]) + " " + unit + (series[j].more ? "\n" + series[j].more(i) : "");
  });
}

// Lines over a number.
function lines(title, note, unit, xLabel, xs, series, { logX = false, logY = false, xWords = short } = {}) {
  const parts = frame(title, unit === "times" ? note : `${note}; ${unit}`, series);
  draw(parts, () => ({
    scales: { x: { time: false, distr: logX ? 3 : 1 }, y: logY ? { distr: 3 } : { range: (_, low, high) => [0, high * 1.08 || 1] } },
    axes: [
      { label: xLabel, labelSize: 20, splits: xs.length <= 12 ? () => xs : undefined, filter: (_, splits) => splits, values: (_, splits) => splits.map((its) => its === null ? null : xWords(its)) },
      { values: (_, splits) => splits.map((its) => its === null ? null : short(its)), size: 56 },
    ],
    series: [{}, ...series.map((its) => ({ label: its.label, stroke: colour(its.variable), width: 2, spanGaps: true, dash: its.dash, points: { show: true, size: 7 } }))],
  }), [xs, ...series.map((its) => its.values)], (i) => {
    const rows = series.filter((its) => its.values[i] !== null && its.values[i] !== undefined).map((its) => its.label + ": " + short(its.values[i]) + " " + unit);
    return [xLabel + " " + xWords(xs[i]), ...rows].join("\n");
  });
}

// One value of every figure along the plan's own axis: lines where there is a real one, else bars over all cells.
function along(title, note, unit, value) {
  const [key, label] = axis;
  const xs = distinct(key).sort((a, b) => a - b);
  if (key !== "payload_bytes" && xs.length > 1) {
    for (const [group, members] of groups(key)) {
      const series = names.map((name) => ({ label: name, variable: colourOf(name), values: xs.map((x) => {
        const cell = members.find((its) => its[key] === x && figures(its).some((entry) => entry.name === name));
        return cell ? value(figures(cell).find((entry) => entry.name === name).figure, cell) : null;
      }) })).filter((its) => its.values.some((its) => its !== null));
      lines(title + (group ? ": " + group : ""), note, unit, label, xs, series);
    }
    return;
  }
  const { categories, series } = overCells(value);
  bars(title, note, unit, categories, series);
}

const nameOf = (cell) => {
  const varied = summary.plan.profile.length > 1 ? cell.varied.replace(new RegExp(",? ?" + cell.profile.replace(/[^a-z0-9]/gi, "\\$&") + "$"), "") : cell.varied;
  const words = [cell.payload_bytes + " B", cell.connection];
  if (distinct("link").length > 1) words.push(cell.link);
  if (varied) words.push(varied);
  return words.join(", ");
};
function overCells(value) {
  const categories = [...new Set(cells.map(nameOf))];
  const series = names.map((name) => ({ label: name, variable: colourOf(name), values: categories.map((category) => {
    for (const cell of cells) if (nameOf(cell) === category) for (const entry of figures(cell)) if (entry.name === name) return value(entry.figure, cell);
    return undefined;
  }) }));
  return { categories, series };
}

function table(parent, head, rows) {
  const wide = make(parent, "div", undefined, "wide");
  const its = make(wide, "table");
  const row = make(make(its, "thead"), "tr");
  head.forEach(([words, kind]) => make(row, "th", words, kind));
  const body = make(its, "tbody");
  for (const values of rows) {
    const line = make(body, "tr");
    values.forEach((value, index) => make(line, "td", value, head[index][1]));
  }
}

// --- what a manager reads
make(page, "h1", summary.title);
const day = summary.date ? summary.date + " · " : "";
make(page, "p", `${day}${summary.environment.cpu_model}, ${summary.environment.cores} cores · kernel ${summary.environment.kernel} · ${summary.environment.server_version}`, "soft");
if (summary.interrupted) make(page, "p", "The session was interrupted: runs are missing.", "warning");
else if (summary.smoke) make(page, "p", "A smoke run: it shows that the plan works; its figures say nothing.", "warning");
const cards = make(page, "div", undefined, "cards");
function card(value, words) {
  const its = make(cards, "div", undefined, "card");
  make(its, "b", value);
  make(its, "span", words, "soft");
}
const gains = cells.filter((cell) => cell.gain !== undefined);
const sure = gains.filter((cell) => !cell.gain_disturbed && cell.gain_interval && cell.gain_interval.confidence >= 0.9 && (cell.gain_interval.low > 1 || cell.gain_interval.high < 1));
if (gains.length) {
  const best = [...gains].sort((a, b) => b.gain - a.gain)[0];
  const least = [...gains].sort((a, b) => a.gain - b.gain)[0];
  card(gainInWords(best), "the greatest gain: " + nameOf(best));
  if (gains.length > 1) card(gainInWords(least), "the smallest: " + nameOf(least));
  card(`${sure.length} of ${gains.length}`, "cells show a difference with 90 % confidence or more");
}
const top1 = cells.flatMap((cell) => figures(cell).map((entry) => ({ cell, ...entry }))).filter(({ figure }) => figure.median > 0).sort((a, b) => measure.smaller_is_better ? a.figure.median - b.figure.median : b.figure.median - a.figure.median)[0];
if (top1) card(`${shown(top1.figure.median)} ${measure.unit}`, `${measure.smaller_is_better ? "the least" : "the most"}: ${top1.name}, ${nameOf(top1.cell)}`);
const errors = cells.flatMap(figures).reduce((sum, { figure }) => sum + figure.errors, 0);
card(String(errors), measure.each === "request" ? "failed runs and requests" : `failed runs, and failures of a ${measure.each}`);
const disturbed = summary.yardstick.disturbed;
card(`${summary.yardstick.points - disturbed} of ${summary.yardstick.points}`, `points were measured on a steady machine; ${summary.plan.repeats} run${summary.plan.repeats === 1 ? "" : "s"} of ${summary.plan.duration_s} s each, ${summary.plan.order === "random" ? `order by seed ${summary.seed}` : `${summary.plan.order} order`}`);

if (summary.judgements.length) {
  make(page, "h2", "What the plan requires");
  const list = make(page, "ul");
  for (const { rule, place, value, holds, doubt } of summary.judgements) make(list, "li", `${rule} ${doubt ? "is not decided" : holds ? "holds" : "is missed"}: ${place} has ${+value.toFixed(2)}${doubt ? ` (${doubt})` : ""}`, doubt ? "soft" : holds ? "good" : "bad");
}

make(page, "h2", "Charts");
charts = make(page, "div", undefined, "charts");
along(measure.name, measure.smaller_is_better ? "median; less is better" : "median; more is better", measure.unit, (figure) => figure.median);
if (gains.length) {
  const categories = [...new Set(gains.map(nameOf))];
  const ours = names.filter((name) => name.startsWith("overfly"));
  const cellOf = (name, i) => gains.find((cell) => nameOf(cell) === categories[i] && figures(cell).some((entry) => entry.name === name));
  bars("Gain", cells.some((cell) => cell.link === "memif") && measure.is_rate ? "Overfly over the kernel; over memif that of a server core; 1 is no gain" : measure.smaller_is_better ? "the kernel's figure over Overfly's; 1 is no gain" : "Overfly's figure over the kernel's; 1 is no gain", "times", categories,
    ours.map((name) => ({ label: name, variable: colourOf(name), values: categories.map((_, i) => cellOf(name, i)?.gain), more: (i) => gainInWords(cellOf(name, i)) })), 1);
}
if (measure.is_rate && cells.some((cell) => cell.payload_bytes > 0)) along("Response bandwidth", "content only, without headers", "Gb/s", (figure, cell) => figure.median * cell.payload_bytes * 8 / 1e9);
if (cells.flatMap(figures).some(({ figure }) => figure.server_cpu_us_per_request > 0)) along(`Server CPU for each ${measure.each}`, "all processes of the server, user and system; less is better", "µs", (figure) => figure.server_cpu_us_per_request);

// Latency by percentile: the axis is 1 / (1 - share), as HdrHistogram's plots have it.
const SHARES = [["p50", 0.5], ["p75", 0.75], ["p90", 0.9], ["p99", 0.99], ["p99_9", 0.999], ["p99_99", 0.9999]];
for (const category of [...new Set(cells.map(nameOf))].slice(0, 12)) {
  const entries = new Map();
  for (const cell of cells) if (nameOf(cell) === category) for (const { name, figure } of figures(cell)) if (!entries.has(name)) entries.set(name, figure);
  const xs = SHARES.map(([, share]) => 1 / (1 - share));
  const series = [...entries].map(([name, figure]) => ({ label: name, variable: colourOf(name), values: SHARES.map(([key]) => figure.latency_us?.[key] ?? null) })).filter((its) => its.values.filter((value) => value !== null).length > 1);
  if (series.length) lines("Latency by percentile: " + category, measure.key === "half_round_trip_us" ? "half of a round trip; median over the runs" : `start of a ${measure.each} to its end; median over the runs`, "µs", "percentile", xs, series,
    { logX: true, logY: true, xWords: (x) => { const share = SHARES.find(([, its]) => Math.abs(1 / (1 - its) - x) / x < 1e-6); return share ? String(+(share[1] * 100).toFixed(4)) : x === 1 ? "0" : ""; } });
}

// Latency against load, where the plan goes through rates.
if (distinct("rate_per_s").filter((its) => its !== undefined).length > 1) {
  for (const [group, members] of groups("rate_per_s")) {
    const rates = [...new Set(members.map((cell) => cell.rate_per_s))].sort((a, b) => a - b);
    const series = names.map((name) => ({ label: name, variable: colourOf(name), values: rates.map((rate) => {
      for (const cell of members) if (cell.rate_per_s === rate) for (const entry of figures(cell)) if (entry.name === name) return entry.figure.latency_p99_us;
      return null;
    }) })).filter((its) => its.values.some((value) => value !== null));
    lines("99th percentile against load" + (group ? ": " + group : ""), "from when a request was due; less is better", "µs", "requests due per second", rates, series, { logY: true });
  }
}

// How many workers or instances reach what the kernel reaches with all of them.
const [axisKey, axisName] = axis;
if (["instances", "workers"].includes(axisKey) && distinct(axisKey).length > 1) {
  const rows = [];
  for (const [group, members] of groups(axisKey)) {
    const reach = (name, rate) => members.filter((cell) => figures(cell).some((entry) => entry.name === name && entry.figure.median >= rate)).map((cell) => cell[axisKey]).sort((a, b) => a - b)[0];
    const most = Math.max(...members.flatMap(figures).filter(({ name }) => name === "kernel").map(({ figure }) => figure.median));
    if (Number.isFinite(most)) rows.push([group || "all", `${shown(most)} ${measure.unit}`, ...names.map((name) => String(reach(name, most) ?? "not reached"))]);
  }
  if (rows.length && !measure.smaller_is_better) {
    make(page, "h2", `${axisName[0].toUpperCase()}${axisName.slice(1)} needed for what the kernel reaches at its best`);
    table(page, [["cell", ""], [measure.unit, "n"], ...names.map((name) => [name, "n"])], rows);
  }
}

const micros = (value) => value > 0 ? value < 100 ? value.toFixed(1) : whole(value) : "";
make(page, "h2", "Every figure");
const HEAD = [["payload", "n"], ["connection", ""], ["link", ""], ["server", ""], [`median ${measure.unit}`, "n"], ["gain", ""], [`server µs/${measure.each}`, "n"], [`${measure.each}s/s per busy core`, "n"], ["p50 µs", "n"], ["p99 µs", "n"], ["busy server/generator %", "n"], ["softirq server/client %", "n"], ["limit", ""], ["of null server", "n"], ["errors", "n"], ["points", ""]];
table(page, HEAD, cells.flatMap((cell) => figures(cell).map(({ name, figure }) => [
  cell.payload_bytes + " B", cell.connection + (cell.varied ? ", " + cell.varied : ""), cell.link, name, shown(figure.median), name.startsWith("overfly") ? gainInWords(cell) : "",
  figure.server_cpu_us_per_request > 0 ? figure.server_cpu_us_per_request.toFixed(2) : "", figure.server_cpu_us_per_request > 0 ? whole(1e6 / figure.server_cpu_us_per_request) : "", micros(figure.latency_p50_us), micros(figure.latency_p99_us),
  figure.limit === "unknown" ? "" : Math.round(figure.server_core_busy_percent) + "/" + Math.round(figure.generator_busy_percent), Math.round(figure.server_core_softirq_percent) + "/" + Math.round(figure.client_core_softirq_percent), figure.limit === "unknown" ? "" : figure.limit, cell.null_server && cell.null_server.link === figure.link && cell.null_server.median > 0 ? Math.round(100 * figure.median / cell.null_server.median) + " %" : "", String(figure.errors),
  figure.points.map((point, i) => (figure.disturbed.includes(i) ? "~" : "") + shown(point) + (figure.outliers.includes(i) ? "?" : "")).join(" "),
])));
make(page, "p", "busy: of the server its cores, of the generator the time that it had something to do. limit: the side that was busy for more than 95 %. of null server: the share of what the generator reached against a server that only answers, where the plan has one; near 100 %, and the null server limited by the generator, the generator may be the limit here too. per busy core: a second of the server's processor time over the µs that one takes. A point with ~ was measured while the machine was slow; one with ? lies far from the others, and counts.", "soft");

const problems = cells.flatMap((cell) => figures(cell).flatMap(({ name, figure }) => [...figure.problems, ...figure.tried_again.map((why) => "made again, and well then, after: " + why)].map((words) => `${nameOf(cell)}, ${name}: ${words}`)));
if (problems.length) {
  make(page, "h2", "What went wrong");
  const list = make(page, "ul");
  problems.forEach((words) => make(list, "li", words));
}

const remarks = cells.flatMap((cell) => figures(cell).flatMap(({ name, figure }) => (figure.remarks || []).map((words) => `${nameOf(cell)}, ${name}: ${words}`)));
if (remarks.length) {
  make(page, "h2", "What to know of the figures");
  const list = make(page, "ul");
  remarks.forEach((words) => make(list, "li", words));
}

make(page, "h2", "Environment");
const environment = summary.environment;
const rows = Object.entries(environment).filter(([, value]) => typeof value !== "object").map(([name, value]) => [name.replaceAll("_", " "), String(value)]);
for (const refused of environment.refused_sysctls || []) rows.push(["refused by the kernel", refused]);
rows.push(["offloads on", environment.offloads_on.join(", ")]);
for (const [name, value] of [...Object.entries(environment.sysctls), ...Object.entries(environment.mitigations)]) rows.push([name, value]);
table(page, [["", ""], ["", "free"]], rows);

make(page, "h2", "Exact commands");
make(page, "p", "As they are typed where the run takes place: inside the namespaces of the run, if it has them.", "soft");
make(page, "pre", [...new Set(cells.flatMap((cell) => figures(cell).flatMap(({ figure }) => [figure.server_command, figure.client_command])))].join("\n"));

make(page, "h2", "Raw data");
const beside = make(page, "p", "Beside this file: ", "soft");
[["points.csv", "one line for each point"], ["summary.json", "every figure"], ["points.jsonl", "every run as it was made"], ["raw/", "the same, one file each"], ["report.md", "the tables as text"]].forEach(([name, words], index) => {
  if (index) beside.append(", ");
  make(beside, "a", name).href = name;
  beside.append(` (${words})`);
});
beside.append(". All of summary.json:");
const raw = make(make(page, "details"), "summary", "summary.json").parentElement;
raw.addEventListener("toggle", () => { if (raw.open && !raw.querySelector("pre")) make(raw, "pre", JSON.stringify(summary, null, 1)); });

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawings.forEach((again) => again()));
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawings.forEach((again) => again()); } });
drawings.forEach((again) => again());
document.body.dataset.charts = String(drawings.length);
