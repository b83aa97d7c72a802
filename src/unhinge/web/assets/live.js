/* The balanced closed forms of gradient flow, and a page of sliders around them: no server, no other file.

   With equal class sizes N the state falls into three parts that do not meet: the class sums X and the prototypes W with
   their mean over classes taken out (singular value sigma_1), their means (sigma_2), and what differs within a class,
   which only decays. The first two obey X' = eta_1 (sigma W - lambda_1 X), W' = eta_2 (sigma X - lambda_2 W): a 2 x 2
   exponential each. Everything is divided by exp(growth t), so that no norm overflows. */
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("starts").textContent);

  // ---- the start: rows as they come, and the inner products of its parts ----------------------------------------------
  function numbers(text) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
    return new Float64Array(bytes.buffer); // little-endian, as every browser's machine is
  }

  const opened = {};
  function start(classes) {
    if (opened[classes]) return opened[classes];
    const given = data.starts[classes], p = data.dim, N = data.per_class, C = Number(classes);
    const H = numbers(given.features), W = numbers(given.weight);
    const X = new Float64Array(C * p), R = new Float64Array(H);
    let within = 0;
    for (let c = 0; c < C; c += 1) {
      for (let k = 0; k < p; k += 1) {
        let sum = 0;
        for (let i = 0; i < N; i += 1) sum += H[(c * N + i) * p + k];
        X[c * p + k] = sum / Math.sqrt(N);
        for (let i = 0; i < N; i += 1) {
          const at = (c * N + i) * p + k;
          R[at] -= sum / N;
          within += R[at] * R[at];
        }
      }
    }
    const means = { X: mean(X, C, p), W: mean(W, C, p) };
    const parts = [gram(apart(X, means.X, C, p), apart(W, means.W, C, p), 1), gram(means.X, means.W, C)];
    opened[classes] = { C: C, N: N, p: p, X: X, W: W, R: R, within: N > 1 ? within : 0, means: means, parts: parts };
    return opened[classes];
  }

  function mean(rows, C, p) {
    const means = new Float64Array(p);
    rows.forEach((value, at) => { means[at % p] += value / C; });
    return means;
  }

  const apart = (rows, middle, C, p) => rows.map((value, at) => value - middle[at % p]);
  function gram(X, W, times) { // |X|^2, <X, W>, |W|^2
    let a = 0, b = 0, c = 0;
    for (let i = 0; i < X.length; i += 1) { a += X[i] * X[i]; b += X[i] * W[i]; c += W[i] * W[i]; }
    return [times * a, times * b, times * c];
  }

  // ---- closed forms ------------------------------------------------------------------------------------------------------
  function group(sigma, a, d, first, second) { // M = [[-a, first sigma], [second sigma, -d]] = m + D, D^2 = q^2
    const m = -(a + d) / 2, delta = (d - a) / 2;
    const q = Math.hypot(delta, sigma * Math.sqrt(first * second));
    return { sigma: sigma, top: m + q, low: m - q, q: q, D: [delta, first * sigma, second * sigma, -delta] };
  }

  function propagator(group, time, growth) { // exp(M t - growth t)
    const scale = Math.exp((group.top - growth) * time), even = (1 + Math.exp(-2 * group.q * time)) / 2;
    const odd = group.q === 0 ? time : -Math.expm1(-2 * group.q * time) / (2 * group.q);
    const [a, b, c, d] = group.D;
    return [scale * (even + a * odd), scale * b * odd, scale * c * odd, scale * (even + d * odd)];
  }

  function inner(A, B, g) { // <A z, B z> for z = (X, W) with the inner products g
    const row = (k) => (A[2 * k] * B[2 * k] * g[0]) + (A[2 * k] * B[2 * k + 1] + A[2 * k + 1] * B[2 * k]) * g[1] + A[2 * k + 1] * B[2 * k + 1] * g[2];
    return [row(0), row(1), A[0] * B[2] * g[0] + (A[0] * B[3] + A[1] * B[2]) * g[1] + A[1] * B[3] * g[2]];
  }

  function solve(asked) {
    const z = start(asked.classes), first = asked.lr * asked.s, second = asked.lr;
    const gamma = asked.gamma === null ? 1 / (z.C - 1) : asked.gamma;
    const unit = Math.sqrt(z.N) / (z.C * z.N);
    const a = first * asked.feature_decay, d = second * asked.weight_decay;
    const groups = [group((1 + gamma) * unit, a, d, first, second), group((1 - gamma * (z.C - 1)) * unit, a, d, first, second)];
    const growth = Math.max(groups[0].top, groups[1].top);
    const size = Math.max(Math.abs(growth), groups[0].q, groups[1].q);
    groups.forEach((one) => {
      one.leads = one.top >= growth - 1e-12 * size;
      const half = one.q === 0 ? null : one.D.map((value) => value / (2 * one.q));
      one.up = half ? [0.5 + half[0], half[1], half[2], 0.5 + half[3]] : [1, 0, 0, 1];
      one.down = half ? [0.5 - half[0], -half[1], -half[2], 0.5 - half[3]] : [0, 0, 0, 0];
    });
    const others = [z.within > 0 ? -a : -Infinity];
    groups.forEach((one) => { if (one.q !== 0 || !one.leads) others.push(one.leads ? one.low : one.top); });
    const lead = Math.sqrt(groups.reduce((sum, one, k) => {
      if (!one.leads) return sum;
      const own = inner(one.up, one.up, z.parts[k]);
      return sum + own[0] + own[1];
    }, 0));
    return { z: z, gamma: gamma, groups: groups, growth: growth, rate: Math.max(...others) - growth, lead: lead, decay: a,
      critical: Math.max(Math.abs(groups[0].sigma), Math.abs(groups[1].sigma)) };
  }

  function scalars(path, time) {
    const z = path.z, left = Math.exp((-path.decay - path.growth) * time);
    let features = z.within * left * left, weight = 0, loss = 0, rest = z.within * left * left, along = 0;
    path.groups.forEach((one, k) => {
      const A = propagator(one, time, path.growth), own = inner(A, A, z.parts[k]);
      features += own[0];
      weight += own[1];
      loss -= one.sigma * own[2];
      if (one.leads) { // what is left beside the leading part, without subtracting two numbers that are nearly equal
        const falls = Math.exp(-2 * one.q * time), down = inner(one.down, one.down, z.parts[k]);
        const both = inner(one.down, one.up, z.parts[k]);
        rest += falls * falls * (down[0] + down[1]);
        along += falls * (both[0] + both[1]) / path.lead;
      } else rest += own[0] + own[1];
    });
    const beside = Math.sqrt(Math.max(0, rest - along * along));
    const scale = Math.exp(path.growth * time);
    return {
      feature_norm: Math.sqrt(features) * scale, weight_norm: Math.sqrt(weight) * scale, loss: loss * scale * scale,
      distance: 2 * Math.sin(Math.atan2(beside, path.lead + along) / 2),
    };
  }

  /* Prototypes and class means at a time, all divided by exp(growth t). */
  function rows(path, time) {
    const z = path.z, W = new Float64Array(z.W.length), M = new Float64Array(z.X.length);
    const [A, B] = path.groups.map((one) => propagator(one, time, path.growth));
    const root = Math.sqrt(z.N);
    for (let at = 0; at < W.length; at += 1) {
      const x0 = z.means.X[at % z.p], w0 = z.means.W[at % z.p], x = z.X[at] - x0, w = z.W[at] - w0;
      M[at] = (A[0] * x + A[1] * w + B[0] * x0 + B[1] * w0) / root;
      W[at] = A[2] * x + A[3] * w + B[2] * x0 + B[3] * w0;
    }
    return { W: W, M: M, left: Math.exp((-path.decay - path.growth) * time) };
  }

  function accuracy(path, time) {
    const z = path.z, now = rows(path, time);
    let right = 0;
    for (let i = 0; i < z.C * z.N; i += 1) {
      const label = Math.floor(i / z.N);
      let best = -1, most = -Infinity;
      for (let j = 0; j < z.C; j += 1) {
        let logit = 0;
        for (let k = 0; k < z.p; k += 1) logit += (now.M[label * z.p + k] + now.left * z.R[i * z.p + k]) * now.W[j * z.p + k];
        if (logit > most) { most = logit; best = j; }
      }
      right += best === label ? 1 : 0;
    }
    return right / (z.C * z.N);
  }

  function answer(asked) { // all of it, for a list of times: what the page draws, and what a test compares
    const path = solve(asked), curves = { loss: [], feature_norm: [], weight_norm: [], distance: [], accuracy: [] };
    asked.times.forEach((time) => {
      Object.entries(scalars(path, time)).forEach(([key, value]) => curves[key].push(value));
      curves.accuracy.push(accuracy(path, time));
    });
    return Object.assign(curves, { growth: path.growth, rate: path.rate, critical: path.critical, gamma: path.gamma });
  }
  window.unhinge = { answer: answer };

  // ---- the page ----------------------------------------------------------------------------------------------------------
  const byId = (id) => document.getElementById(id);
  const STEPS = 1000, POINTS = 160;
  const ranges = { gamma: [1e-3, 10], feature_decay: [1e-5, 1], weight_decay: [1e-5, 1], lr: [1e-3, 10], s: [1e-2, 1e2] };
  const read = (text) => { // a number, or a quotient such as 1/9
    const parts = text.split("/");
    return text.trim() === "" ? NaN : parts.length === 2 ? Number(parts[0]) / Number(parts[1]) : Number(text);
  };
  const short = (value, digits) => (Number.isFinite(value) ? String(Number(value.toPrecision(digits || 3))) : "infinite");

  function asked() {
    const settings = { classes: data.classes[Number(byId("classes").value)], gamma: null };
    ["gamma", "feature_decay", "weight_decay", "lr", "s"].forEach((key) => {
      const box = byId(key), value = read(box.value), empty = box.value.trim() === "" && key === "gamma";
      const low = key === "lr" || key === "s" ? 0 : -1e-300;
      const wrong = !empty && !(Number.isFinite(value) && value > low && value <= 1e4);
      box.classList.toggle("invalid", wrong);
      if (!empty) settings[key] = wrong ? Number(box.dataset.kept) : value;
      if (!wrong && !empty) box.dataset.kept = String(value);
    });
    return settings;
  }

  function horizon(path) {
    if (!(path.rate < 0)) return 1000;
    const wanted = Math.min(1e9, Math.max(10, Math.log(3e3) / -path.rate)), digit = Math.pow(10, Math.floor(Math.log10(wanted)));
    return digit * Math.ceil(wanted / digit * 2) / 2;
  }

  let shown = null;
  function redraw() {
    const given = asked(), path = solve(given), until = horizon(path), z = path.z;
    byId("classes-shown").textContent = given.classes;
    byId("gamma").placeholder = "1/(C-1) = " + short(1 / (z.C - 1), 4);
    if (byId("gamma").value.trim() === "") follow("gamma");
    const times = Array.from({ length: POINTS + 1 }, (_, k) => until * k / POINTS);
    const all = times.map((time) => scalars(path, time));
    const pick = (key) => all.map((one) => one[key]);
    const stride = Math.max(1, Math.ceil(POINTS * z.C * z.C * z.N * z.p / 2e7));
    const few = times.filter((_, k) => k % stride === 0);
    const loss = pick("loss"), falls = loss.slice(POINTS / 2).every((value) => value < 0);
    plot("loss", times, falls ? { "minus the loss": loss.map((value) => -value) } : { loss: loss }, falls);
    plot("norms", times, { "features |H|": pick("feature_norm"), "prototypes |W|": pick("weight_norm") }, true);
    plot("distance", times, { "distance to the limit": pick("distance") }, true);
    plot("accuracy", few, { accuracy: few.map((time) => accuracy(path, time)) }, false, [0, 1.05]);
    say(given, path, accuracy(path, 60 / Math.max(1e-300, -path.rate)));
    shown = { path: path, until: until };
    picture();
  }

  function say(given, path, late) {
    const C = path.z.C, edge = C === 2 ? Infinity : 2 / (C - 2), product = Math.sqrt(given.feature_decay * given.weight_decay);
    const end = path.gamma > edge
      ? `γ is above 2/(C-2) = ${short(edge)}: all classes end on one vector.`
      : `Each class ends on a vector of its own; the accuracy there is ${short(100 * late)} %.`;
    const norms = product === 0 ? "Without both decays the norms grow without bound."
      : Math.abs(product / path.critical - 1) < 1e-6 ? "The decay is critical: the norms settle at a finite value."
        : product < path.critical ? "The decay is below the critical one: the norms grow without bound."
          : "The decay is above the critical one: everything shrinks to zero, and the direction still converges.";
    byId("words").textContent = end + " " + norms;
    byId("facts").textContent = `critical decay ${short(path.critical, 4)}   √(λ₁λ₂) ${short(product, 4)}   growth of |Z| `
      + `${short(path.growth, 4)} per unit of time   exponent of the distance ${short(path.rate, 4)}   fastest γ 1/(C-1) = ${short(1 / (C - 1), 4)}`;
  }

  // ---- curves ------------------------------------------------------------------------------------------------------------
  const COLORS = ["var(--one)", "var(--two)"];
  function ticks(low, high, log) {
    const marks = [];
    if (log) {
      const step = Math.max(1, Math.ceil((high - low) / 5));
      for (let k = Math.ceil(low / step) * step; k <= high + 1e-9; k += step) marks.push([k, k === 0 ? "1" : "1e" + k]);
      return marks;
    }
    const raw = (high - low) / 4, digit = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = digit * [1, 2, 5, 10].find((factor) => factor * digit >= raw);
    for (let value = Math.ceil(low / step) * step; value <= high + 1e-9 * step; value += step) marks.push([value, short(value, 6)]);
    return marks;
  }

  function plot(name, x, curves, log, range) {
    const place = byId(name), width = 420, height = 250, left = 56, right = 14, top = 10, bottom = 40;
    const seen = (value) => Number.isFinite(value) && (!log || value > 0);
    const level = (value) => (log ? Math.log10(value) : value);
    const levels = Object.values(curves).flat().filter(seen).map(level);
    let [low, high] = range || [Math.min(...levels), Math.max(...levels)];
    if (!levels.length) [low, high] = [0, 1];
    if (high - low < 1e-9) { low -= 0.5; high += 0.5; }
    if (!range) { const room = 0.04 * (high - low); low -= room; high += room; }
    const across = (time) => left + (width - left - right) * time / x[x.length - 1];
    const up = (value) => height - bottom - (height - top - bottom) * (value - low) / (high - low);
    const parts = ticks(low, high, log).map(([value, words]) => `<line class="grid" x1="${left}" x2="${width - right}" y1="${up(value)}" y2="${up(value)}"/>`
      + `<text x="${left - 6}" y="${up(value) + 4}" text-anchor="end">${words}</text>`);
    ticks(0, x[x.length - 1], false).forEach(([value, words]) => parts.push(`<text x="${Math.min(across(value), width - 4 * words.length)}" y="${height - bottom + 16}" text-anchor="middle">${words}</text>`));
    parts.push(`<text x="${(left + width - right) / 2}" y="${height - 6}" text-anchor="middle">time</text>`);
    Object.entries(curves).forEach(([words, y], k) => {
      let line = "", on = false;
      y.forEach((value, at) => {
        on = on && seen(value);
        if (!seen(value)) return;
        line += (on ? "L" : "M") + across(x[at]).toFixed(2) + " " + up(level(value)).toFixed(2);
        on = true;
      });
      parts.push(`<path d="${line}" stroke="${COLORS[k]}"${k ? ' stroke-dasharray="6 3"' : ""}/>`);
    });
    place.innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${Object.keys(curves).join(", ")} over time">${parts.join("")}</svg>`;
    byId(name + "-key").innerHTML = Object.keys(curves).map((words, k) => `<span><i style="border-top: 3px ${k ? "dashed" : "solid"} ${COLORS[k]}"></i>${words}</span>`).join("");
  }

  // ---- the moving picture ------------------------------------------------------------------------------------------------
  const MARKS = ["var(--one)", "var(--two)", "var(--three)"];
  function picture() {
    if (!shown) return;
    const path = shown.path, z = path.z, share = Number(byId("moment").value) / 100, time = share * shown.until;
    const last = rows(path, 40 / Math.max(1e-300, -path.rate)).W, few = Math.min(3, z.C), p = z.p;
    const of = (all, row) => all.subarray(row * p, (row + 1) * p);
    const middle = new Float64Array(p), basis = [];
    for (let c = 0; c < few; c += 1) of(last, c).forEach((value, k) => { middle[k] += value / few; });
    for (let c = 0; c < few && basis.length < 2; c += 1) { // the plane of three final prototypes
      const v = Array.from(of(last, c), (value, k) => value - middle[k]);
      basis.forEach((b) => { const dot = b.reduce((sum, value, k) => sum + value * v[k], 0); b.forEach((value, k) => { v[k] -= dot * value; }); });
      const size = Math.hypot(...v);
      if (size > 0) basis.push(v.map((value) => value / size));
    }
    while (basis.length < 2) basis.push(Array.from({ length: p }, (_, k) => (k === basis.length ? 1 : 0)));
    const now = rows(path, time), points = [];
    const flat = (vector) => basis.map((b) => b.reduce((sum, value, k) => sum + value * vector[k], 0));
    for (let c = 0; c < few; c += 1) {
      for (let i = 0; i < Math.min(z.N, 8); i += 1) {
        points.push([c, false, flat(Array.from(of(now.M, c), (value, k) => value + now.left * z.R[((c * z.N) + i) * p + k]))]);
      }
      points.push([c, true, flat(of(now.W, c))]);
    }
    [false, true].forEach((star) => { // features and prototypes have lengths of their own
      const mine = points.filter((one) => one[1] === star);
      const size = Math.sqrt(mine.reduce((sum, one) => sum + one[2][0] ** 2 + one[2][1] ** 2, 0) / mine.length) || 1;
      mine.forEach((one) => { one[2] = one[2].map((value) => value / size); });
    });
    const at = (value) => 120 + 55 * value;
    byId("picture").innerHTML = `<svg viewBox="0 0 240 240" role="img" aria-label="features and prototypes of three classes">` + points.map(([c, star, [x, y]]) => (star
      ? `<path d="M${at(x) - 7} ${at(-y)}h14M${at(x)} ${at(-y) - 7}v14" stroke="${MARKS[c]}" stroke-width="3"/>`
      : `<circle cx="${at(x)}" cy="${at(-y)}" r="4" fill="${MARKS[c]}" fill-opacity=".65"/>`)).join("") + "</svg>";
    byId("moment-shown").textContent = "time " + short(time, 4);
  }

  // ---- sliders -----------------------------------------------------------------------------------------------------------
  /* Positions are spread evenly over the logarithm; those of a decay are closer together near the critical one. */
  function valueAt(key, position) {
    const [low, high] = ranges[key];
    if (position <= 0 && key !== "lr" && key !== "s") return 0;
    let u = position / STEPS;
    if (key.endsWith("decay")) u = bent(u, share(key, solve(asked()).critical));
    return low * Math.pow(high / low, u);
  }
  const share = (key, value) => Math.min(1, Math.max(0, Math.log(value / ranges[key][0]) / Math.log(ranges[key][1] / ranges[key][0])));
  function bent(u, c) { // a cube around c: slope a quarter there, and the ends stay where they are
    const side = u < c ? c : 1 - c, v = side === 0 ? 0 : (u - c) / side;
    return c + side * (0.25 * v + 0.75 * v * v * v);
  }
  function unbent(w, c) {
    let low = 0, high = 1;
    for (let k = 0; k < 50; k += 1) { const middle = (low + high) / 2; if (bent(middle, c) < w) low = middle; else high = middle; }
    return low;
  }
  function follow(key) { // the slider goes where the number is
    const slider = byId(key + "-slider"), empty = key === "gamma" && byId(key).value.trim() === "";
    const value = empty ? solve(asked()).gamma : read(byId(key).value);
    if (!(value > 0)) { slider.value = 0; return; }
    const w = share(key, value);
    slider.value = Math.round(STEPS * (key.endsWith("decay") ? unbent(w, share(key, solve(asked()).critical)) : w));
  }

  Object.keys(ranges).forEach((key) => {
    byId(key).addEventListener("input", () => { follow(key); redraw(); });
    byId(key + "-slider").addEventListener("input", (event) => {
      byId(key).value = short(valueAt(key, Number(event.target.value)), 4);
      redraw();
    });
    follow(key);
  });
  byId("classes").addEventListener("input", redraw);
  byId("moment").addEventListener("input", picture);
  byId("critical").addEventListener("click", () => {
    const value = String(solve(asked()).critical);
    ["feature_decay", "weight_decay"].forEach((key) => { byId(key).value = value; follow(key); });
    redraw();
  });
  let timer = null;
  byId("play").addEventListener("click", () => {
    if (timer) { clearInterval(timer); timer = null; byId("play").textContent = "▶ Play"; return; }
    if (Number(byId("moment").value) >= 100) byId("moment").value = 0;
    byId("play").textContent = "❚❚ Pause";
    timer = setInterval(() => {
      byId("moment").value = Number(byId("moment").value) + 1;
      picture();
      if (Number(byId("moment").value) >= 100) byId("play").click();
    }, 60);
  });
  redraw();
})();
