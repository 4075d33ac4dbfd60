// The interactive part of report.html. Its data come from analysis/explorer.py. What the table
// prints was computed there for each target of the slider; this file looks it up and draws.
"use strict";

const study = JSON.parse(document.getElementById("explorer-data").textContent);
const state = { target: study.start, measure: study.measure, hyperparameter: 0, hidden: new Set() };
const byId = (id) => document.getElementById(id);

const count = (value) =>
  value < 1e6 ? d3.format(",.0f")(value) : `${d3.format(",.2f")(value / 1e6)}M`;
const seconds = (value) => d3.format(value < 1000 ? ",.1f" : ",.0f")(value);
const measure = () => study.measures[state.measure];
const number = (value) => (measure().name === "seconds" ? seconds : count)(value);
const target = () => study.targets[state.target];
const results = () => target().measures[state.measure];
const isReached = (value) => (study.above ? value >= target().value : value <= target().value);
const isShown = (condition) => !state.hidden.has(condition);
const color = (condition) => study.conditions[condition].color;
const shownTrials = () => study.trials.filter((trial) => isShown(trial.condition));
const trialsAt = (indices) => new Set(indices.map((index) => study.trials[index]));

// Evaluations are [fresh examples, steps, seconds, value], those that improved on the ones before.
function score(trial) {
  const hit = trial.curve.find((evaluation) => isReached(evaluation[3]));
  return hit && hit[state.measure];
}

function describe(trial, uncounted) {
  const reached = score(trial);
  const outcome = reached === undefined ? "target not reached" : `target at ${number(reached)}`;
  const label = study.conditions[trial.condition].label;
  const lines = [label, trial.name, ...trial.values, outcome];
  return (uncounted.has(trial) ? [...lines, "does not count"] : lines).join("\n");
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function drawTable() {
  const [head, ...rows] = results().table;
  const headRow = document.createElement("tr");
  headRow.append(...head.map((cell) => element("th", cell)));
  byId("scores-table").tHead.replaceChildren(headRow);
  const bodyRows = rows.filter((_, condition) => isShown(condition)).map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => element("td", cell)));
    return row;
  });
  byId("scores-table").tBodies[0].replaceChildren(...bodyRows);
}

function drawScores() {
  const medians = results().conditions
    .map(([low, high, min, max], condition) => ({ low, high, min, max, condition }))
    .filter(({ low, condition }) => low !== null && isShown(condition));
  const known = medians.filter(({ low, high }) => low === high);
  const bounds = medians.filter(({ low, high }) => low !== high).flatMap((median) =>
    [median.low, median.high].filter((x) => x !== null).map((x) => ({ ...median, x })));
  const searches = results().searches
    .map(([condition, search, value, censored]) => ({ condition, search, value, censored }))
    .filter(({ value, condition }) => value !== null && isShown(condition));
  const label = ({ condition }) => study.conditions[condition].label;
  const stroke = ({ condition }) => color(condition);
  const title = ({ condition, search, value, censored }) =>
    `${study.conditions[condition].label}\nsearch ${search}: ${censored ? ">" : ""}${number(value)}`;
  const medianTitle = (median) => `${label(median)}\nmedian: ${results().table[median.condition + 1][2]}`;
  byId("scores").replaceChildren(
    Plot.plot({
      width: 800,
      marginLeft: 300,
      marginBottom: 45,
      height: 75 + 26 * study.conditions.filter((_, condition) => isShown(condition)).length,
      x: { label: `${measure().label} to ${target().text}`, zero: true, tickFormat: number },
      y: { domain: study.conditions.map((c) => c.label).filter((_, i) => isShown(i)), label: null },
      caption: bounds.length ? "Dashed: a bound of the median, which is not known." : undefined,
      marks: [
        Plot.ruleY(medians, { x1: "min", x2: "max", y: label, stroke }),
        Plot.tickX(known, { x: "low", y: label, stroke, strokeWidth: 3, title: medianTitle }),
        Plot.tickX(bounds, {
          x: "x", y: label, stroke, strokeWidth: 3, strokeDasharray: "3 3", title: medianTitle,
        }),
        Plot.dot(searches, {
          x: "value", y: label, stroke, fill: "white",
          symbol: (search) => (search.censored ? "triangle" : "circle"),
        }),
        Plot.tip(searches, Plot.pointer({ x: "value", y: label, title })),
      ],
    }),
  );
}

function drawTrials() {
  const axis = study.hyperparameters[state.hyperparameter];
  if (!axis) return;
  const points = shownTrials()
    .map((trial) => ({ trial, x: trial.hyperparameters[state.hyperparameter], y: score(trial) }))
    .filter(({ x }) => x !== null);
  const reached = points.filter(({ y }) => y !== undefined);
  const others = points.filter(({ y }) => y === undefined);
  const stroke = ({ trial }) => color(trial.condition);
  const leaders = trialsAt(target().leaders);
  const uncounted = trialsAt(target().uncounted);
  const title = ({ trial }) => describe(trial, uncounted);
  const strokeOpacity = ({ trial }) => (uncounted.has(trial) ? 0.3 : 1);
  const choice = (x) => String(axis.choices[x] ?? "");
  byId("trials").replaceChildren(
    Plot.plot({
      width: 800, height: 370, marginLeft: 60, marginTop: 40, marginBottom: 45,
      x: {
        label: axis.label, type: axis.log ? "log" : "linear",
        tickFormat: axis.choices.length ? choice : "~g",
      },
      y: { label: `${measure().label} to ${target().text}`, zero: true, tickFormat: number },
      caption: "Filled: the best trial of a search. Faint crosses: trials that do not count. "
        + "Crosses above: trials that did not reach the target.",
      marks: [
        Plot.dot(reached.filter(({ trial }) => !uncounted.has(trial)), {
          x: "x", y: "y", stroke, fill: stroke,
          fillOpacity: ({ trial }) => (leaders.has(trial) ? 1 : 0.15),
        }),
        Plot.dot(reached.filter(({ trial }) => uncounted.has(trial)), {
          x: "x", y: "y", symbol: "times", stroke, strokeOpacity,
        }),
        Plot.dot(others, {
          x: "x", frameAnchor: "top", dy: -12, symbol: "times", stroke, strokeOpacity,
        }),
        Plot.tip(reached, Plot.pointer({ x: "x", y: "y", title })),
        Plot.tip(others, Plot.pointer({ x: "x", frameAnchor: "top", dy: -12, title })),
      ],
    }),
  );
}

function drawCurves() {
  const leaders = trialsAt(target().leaders);
  const uncounted = trialsAt(target().uncounted);
  const points = shownTrials().flatMap((trial) =>
    trial.curve.map((evaluation) => ({ trial, x: evaluation[state.measure], y: evaluation[3] })));
  const stroke = ({ trial }) => color(trial.condition);
  const plot = Plot.plot({
    width: 800, height: 390, marginLeft: 60, marginTop: 30, marginBottom: 45,
    x: { label: measure().label, zero: true, tickFormat: number },
    y: { label: `best validation ${study.metric} so far`, grid: true },
    marks: [
      Plot.line(points, {
        x: "x", y: "y", z: ({ trial }) => study.trials.indexOf(trial), stroke, curve: "step-after",
        strokeOpacity: ({ trial }) => (leaders.has(trial) ? 1 : 0.15),
        strokeWidth: ({ trial }) => (leaders.has(trial) ? 1.5 : 1),
      }),
      Plot.dot(points.filter(({ trial, y, x }) => leaders.has(trial) && isReached(y) && x === score(trial)),
        { x: "x", y: "y", fill: stroke }),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: ({ trial }) => describe(trial, uncounted) })),
    ],
  });
  addHandle(plot);
  byId("curves").replaceChildren(plot);
}

// The dotted line at the target, which can be dragged.
function addHandle(plot) {
  const y = plot.scale("y");
  const [left, right] = plot.scale("x").range;
  const handle = d3.select(plot).append("g").attr("id", "handle").attr("cursor", "ns-resize");
  for (const [width, stroke] of [[1.5, "#222"], [16, "transparent"]]) {
    handle.append("line").attr("x1", left).attr("x2", right)
      .attr("stroke", stroke).attr("stroke-width", width).attr("stroke-dasharray", width < 2 ? "2 3" : null);
  }
  const move = () => handle.attr("transform", `translate(0,${y.apply(target().value)})`);
  move();
  handle.call(d3.drag().container(plot).on("drag", (event) => {
    const value = y.invert(event.y);
    state.target = d3.leastIndex(study.targets, (a, b) => Math.abs(a.value - value) - Math.abs(b.value - value));
    drawResults();
    move();
  }).on("end", drawCurves));
}

function drawResults() {
  byId("target").value = state.target;
  byId("target-text").textContent = target().text;
  drawTable();
  drawScores();
  drawTrials();
}

function draw() {
  drawResults();
  drawCurves();
}

function fill(select, labels, key) {
  select.append(...labels.map((label) => element("option", label)));
  select.selectedIndex = state[key];
  select.addEventListener("change", () => { state[key] = select.selectedIndex; draw(); });
}

function start() {
  byId("target").max = study.targets.length - 1;
  byId("target").addEventListener("input", (event) => { state.target = +event.target.value; draw(); });
  fill(byId("measure"), study.measures.map(({ label }) => label), "measure");
  fill(byId("hyperparameter"), study.hyperparameters.map(({ label }) => label), "hyperparameter");
  byId("hyperparameter").parentElement.hidden = !study.hyperparameters.length;
  study.conditions.forEach(({ label }, condition) => {
    const box = element("input", "");
    Object.assign(box, { type: "checkbox", checked: true });
    box.style.accentColor = color(condition);
    box.addEventListener("change", () => {
      state.hidden[box.checked ? "delete" : "add"](condition);
      draw();
    });
    const line = element("label", "");
    line.append(box, ` ${label}`);
    byId("conditions").append(line);
  });
  byId("explorer").hidden = false;
  draw();
}

start();
