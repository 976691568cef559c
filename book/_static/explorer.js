// Damage of each mechanism as the optimizer changes, computed here from the mechanisms themselves.
// The formulas are those of momentdp.damage; a browser test compares the two.
(() => {
  "use strict";
  const data = window.MOMENTDP;
  const root = document.getElementById("momentdp-explorer");
  if (!data || !root) return;
  const names = Object.keys(data.looks);
  const momenta = Array.from({ length: 50 }, (_, i) => i / 50);

  // --- The computation -------------------------------------------------------------------------

  function numbers(stored) {
    if (!stored.values) {
      const bytes = Uint8Array.from(atob(stored.numbers), (c) => c.charCodeAt(0));
      const view = new DataView(bytes.buffer);
      stored.values = Float64Array.from({ length: bytes.length / 4 }, (_, i) =>
        view.getFloat32(4 * i, true));
    }
    return stored.values;
  }

  // y = g C^-1, in place: the last step first, since C is lower triangular.
  const applied = {
    toeplitz(stored, g) {
      const c = numbers(stored), T = g.length;
      for (let s = T - 1; s >= 0; s--) {
        let sum = g[s];
        for (let k = 1; k < c.length && s + k < T; k++) sum -= g[s + k] * c[k];
        g[s] = sum / c[0];
      }
    },
    inverse_banded(stored, g) {
      const n = numbers(stored), T = g.length;
      for (let s = 0; s < T; s++) {
        let sum = 0;
        for (let k = 0; k < n.length && s + k < T; k++) sum += g[s + k] * n[k];
        g[s] = sum;
      }
    },
    banded(stored, g) {
      const c = numbers(stored), T = g.length; // c[k T + j] = C[j + k, j]
      for (let s = T - 1; s >= 0; s--) {
        let sum = g[s];
        for (let k = 1; k < stored.bands && s + k < T; k++) sum -= g[s + k] * c[k * T + s];
        g[s] = sum / c[s];
      }
    },
    dense(stored, g) {
      const c = numbers(stored); // row t of the triangle begins at t (t + 1) / 2
      for (let t = g.length - 1; t >= 0; t--) {
        const row = (t * (t + 1)) / 2;
        g[t] /= c[row + t];
        for (let s = 0; s < t; s++) g[s] -= g[t] * c[row + s];
      }
    },
  };

  // What a unit of noise at each step does to the last error in one mode (a backward sweep).
  function transfer(eigenvalue, momentum, rates) {
    const g = new Float64Array(rates.length);
    let error = 1, buffer = 0;
    for (let t = rates.length - 1; t >= 0; t--) {
      const inflow = buffer - rates[t] * error;
      g[t] = inflow;
      error += eigenvalue * inflow;
      buffer = momentum * inflow;
    }
    return g;
  }

  function strategy(name, setting) {
    if (name !== "noisecurve") return data.mechanisms[name];
    return data.noisecurve[data.conditions.indexOf(setting.kappa)][
      data.step_sizes.indexOf(setting.el)];
  }

  function damages(setting, momentum) {
    const eigenvalues = data.spectra[data.conditions.indexOf(setting.kappa)];
    const step = setting.el * (setting.arm === "b" ? 1 - momentum : 1);
    const rates = data.schedules[setting.schedule].map((share) => step * share);
    const found = Object.fromEntries(names.map((name) => [name, 0]));
    for (const eigenvalue of eigenvalues) {
      const g = transfer(eigenvalue, momentum, rates);
      for (const name of names) {
        const stored = strategy(name, setting), y = g.slice();
        applied[stored.kind](stored, y);
        found[name] += (eigenvalue / 2) * y.reduce((sum, value) => sum + value * value, 0);
      }
    }
    return found;
  }

  const ranked = (values) => names.slice().sort((a, b) => values[a] - values[b]);

  // Where the lead changes hands between two momenta of the grid, by linear interpolation of the log.
  function leadChanges(rows) {
    const found = [];
    for (let i = 1; i < rows.length; i++) {
      const before = ranked(rows[i - 1])[0], after = ranked(rows[i])[0];
      if (before === after) continue;
      const gap = (row) => Math.log(row[after] / row[before]);
      const left = gap(rows[i - 1]), right = gap(rows[i]);
      const share = left / (left - right);
      const momentum = momenta[i - 1] + share * (momenta[i] - momenta[i - 1]);
      found.push({ momentum, before, after });
    }
    return found;
  }

  // --- The page --------------------------------------------------------------------------------

  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(`explorer-${id}`);
  const label = (name) => data.looks[name].label;
  const short = (value) => {
    if (value >= 0.001 && value < 1e5) return String(Number(value.toPrecision(3)));
    return value.toExponential(2);
  };

  function element(parent, tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function line(parent, name, attributes) {
    const look = data.looks[name];
    return element(parent, "path", {
      fill: "none", stroke: look.colour, "stroke-width": 2.2, "stroke-dasharray": look.dashes,
      ...attributes,
    });
  }

  const HEIGHT = 380, LEFT = 62, RIGHT = 24, TOP = 14, BOTTOM = 46;

  function ticks(low, high) {
    const all = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of [1, 2, 3, 5]) all.push(m * 10 ** e);
    const inside = all.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    const tens = inside.filter((v) => Number.isInteger(Math.round(1e9 * Math.log10(v)) / 1e9));
    return tens.length > 3 ? tens : inside;
  }

  function draw(svg, rows, setting, changes) {
    const WIDTH = svg.clientWidth < 500 ? 400 : 640; // letters stay legible on a phone
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const relative = setting.view === "ratio";
    const height = (row, name) => (relative ? row[name] / row.dense : row[name]);
    const all = rows.flatMap((row) => names.map((name) => height(row, name)));
    const low = Math.min(...all) / 1.06, high = Math.max(...all) * 1.06;
    const x = (m) => LEFT + (m / momenta[momenta.length - 1]) * (WIDTH - LEFT - RIGHT);
    const y = (v) =>
      TOP + ((Math.log(high) - Math.log(v)) / (Math.log(high) - Math.log(low))) *
        (HEIGHT - TOP - BOTTOM);
    svg.replaceChildren();
    element(svg, "title", { id: "explorer-title" }, "Damage of each mechanism against momentum");
    element(svg, "rect", { width: WIDTH, height: HEIGHT, fill: "#ffffff" });
    const text = { fill: "#202020", "font-size": 14 };
    for (const value of ticks(low, high)) {
      element(svg, "path", { d: `M${LEFT} ${y(value)}H${WIDTH - RIGHT}`, stroke: "#e4e4e4" });
      element(svg, "text", { ...text, x: LEFT - 6, y: y(value) + 5, "text-anchor": "end" },
        short(value));
    }
    for (const m of [0, 0.2, 0.4, 0.6, 0.8, 0.98])
      element(svg, "text", { ...text, x: x(m), y: HEIGHT - 24, "text-anchor": "middle" }, m);
    element(svg, "text",
      { ...text, x: (LEFT + WIDTH) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, "momentum μ");
    element(svg, "text", {
      ...text, transform: `translate(13 ${(HEIGHT - BOTTOM) / 2}) rotate(-90)`,
      "text-anchor": "middle",
    }, relative ? "damage / dense" : "damage");
    element(svg, "path", {
      d: `M${x(setting.momentum)} ${TOP}V${HEIGHT - BOTTOM}`, stroke: "#606060",
      "stroke-dasharray": "3 3",
    });
    for (const name of names) {
      const points = rows.map((row, i) => `${x(momenta[i]).toFixed(1)} ${y(height(row, name)).toFixed(1)}`);
      line(svg, name, { d: `M${points.join("L")}` });
    }
    for (const change of changes) {
      const i = Math.min(Math.round(change.momentum * 50), rows.length - 1);
      element(svg, "circle", {
        cx: x(change.momentum), cy: y(height(rows[i], change.after)), r: 7, fill: "none",
        stroke: data.looks[change.after].colour, "stroke-width": 2,
      });
    }
  }

  function list(body, values, setting) {
    body.replaceChildren();
    ranked(values).forEach((name, place) => {
      const row = body.insertRow();
      row.dataset.mechanism = name;
      row.insertCell().textContent = place + 1;
      const head = document.createElement("th");
      head.scope = "row";
      const swatch = element(head, "svg",
        { viewBox: "0 0 36 12", width: 36, height: 12, "aria-hidden": "true" });
      element(swatch, "rect", { width: 36, height: 12, fill: "#ffffff" });
      line(swatch, name, { d: "M2 6H34" });
      head.append(` ${label(name)}`);
      row.append(head);
      row.insertCell().textContent = short(values[name]);
      row.insertCell().textContent = short(values[name] / values.dense);
    });
  }

  const fields = {
    momentum: byId("momentum"), el: byId("el"), kappa: byId("kappa"), schedule: byId("schedule"),
    view: byId("view"),
  };

  function setting() {
    return {
      momentum: Number(fields.momentum.value),
      el: data.step_sizes[fields.el.value],
      kappa: data.conditions[fields.kappa.value],
      schedule: fields.schedule.value,
      arm: root.querySelector("input[name=arm]:checked").value,
      view: fields.view.value,
    };
  }

  let drawn = "", rows = [];

  function update() {
    const now = setting();
    for (const key of ["momentum", "el", "kappa"]) {
      byId(`${key}-value`).textContent = now[key];
      fields[key].setAttribute("aria-valuetext", now[key]);
    }
    const curve = JSON.stringify([now.el, now.kappa, now.schedule, now.arm]);
    if (curve !== drawn) {
      drawn = curve;
      rows = momenta.map((m) => damages(now, m));
    }
    const values = damages(now, now.momentum), changes = leadChanges(rows);
    draw(byId("chart"), rows, now, changes);
    list(byId("ranks"), values, now);
    const order = ranked(values);
    const lead = changes.length
      ? "The lead changes at " + changes.map((c) =>
        `μ ≈ ${c.momentum.toFixed(2)} (${label(c.before)} → ${label(c.after)})`).join(", ") + "."
      : "The lead does not change.";
    byId("summary").textContent =
      `At μ = ${now.momentum}: ${label(order[0])} is first, NoiseCurve ` +
      `${order.indexOf("noisecurve") + 1} of ${names.length}. ${lead}`;
  }

  fields.el.max = data.step_sizes.length - 1;
  fields.kappa.max = data.conditions.length - 1;
  for (const name of Object.keys(data.schedules))
    fields.schedule.add(new Option(name.replaceAll("_", " "), name));
  fields.momentum.value = data.start.momentum;
  fields.el.value = data.step_sizes.indexOf(data.start.el);
  fields.kappa.value = data.conditions.indexOf(data.start.kappa);
  fields.schedule.value = data.start.schedule;
  root.addEventListener("input", update);
  window.addEventListener("resize", update);
  root.hidden = false;
  document.getElementById("explorer-static").classList.add("replaced");
  window.momentdpExplorer = { damages, setting };
  update();
})();
