/* What the page does by itself: sliders and numbers that follow each other, the address that holds the state, one
   request at a time with the latest state next, drawing, saving, looks and hints. Curves come from the server. */
(function () {
  "use strict";
  const POSITIONS = 200;
  const SETTLED = 700; // ms without a change until the next one is a new entry of the history
  const TYPING = 350; // ms after the last key until a number counts
  const FRAME = 70; // ms between two pictures of a moving one

  const spec = JSON.parse(document.getElementById("spec").textContent);
  Object.values(spec).forEach((mine) => ["feature_decay", "weight_decay"].forEach((key) => { if (mine[key]) mine[key].decay = true; }));
  const page = {
    view: null, look: "light", item: "", critical: {}, pinned: {}, present: {}, code: {}, moving: {}, drawn: {}, timing: {}, answers: 0,
    busy: false, waiting: null, picture: null, lastChange: 0,
  };
  window.explorer = page;
  const byId = (id) => document.getElementById(id);
  const all = (query) => Array.from(document.querySelectorAll(query));
  const form = (view) => document.querySelector(`form[data-form="${view}"]`);
  const field = (view, key) => form(view).elements.namedItem(key); // a control may be called "length"
  const range = (view, key) => form(view).querySelector(`input.slider[data-key="${key}"]`);

  // ---- values and positions --------------------------------------------------------------------------------------
  /* Around the critical decay a step of the slider is a quarter of what it is elsewhere; the ends stay where they are. */
  function bent(share, middle) {
    const side = share < middle ? middle : 1 - middle, away = side === 0 ? 0 : (share - middle) / side;
    return middle + side * (0.25 * away + 0.75 * away * away * away);
  }

  function unbent(wanted, middle) {
    let low = 0, high = 1;
    for (let k = 0; k < 40; k += 1) {
      const half = (low + high) / 2;
      if (bent(half, middle) < wanted) low = half; else high = half;
    }
    return low;
  }

  function middleOf(control) { // where on its slider the critical decay lies, or null
    const critical = control.decay ? page.critical[page.view] : null, [low, high] = control.slide;
    if (!(critical > low && critical < high)) return null;
    return Math.log(critical / low) / Math.log(high / low);
  }

  function valueAt(control, position) {
    const [low, high] = control.slide, middle = middleOf(control);
    if (control.zero && position <= 0) return "0";
    const share = middle === null ? position / POSITIONS : bent(position / POSITIONS, middle);
    const value = control.log ? low * Math.pow(high / low, share) : low + (high - low) * share;
    return String(control.kind === "count" ? Math.round(value) : Number(value.toPrecision(3)));
  }

  function numberOf(text) { // 0.25, or a quotient such as 1/9
    const parts = text.split("/");
    return parts.length === 2 ? Number(parts[0]) / Number(parts[1]) : Number(text);
  }

  function positionOf(control, text) {
    const value = numberOf(text), [low, high] = control.slide;
    if (text === "" || !isFinite(value) || (control.log && value <= 0)) return 0;
    const plain = control.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    const inside = Math.min(1, Math.max(0, plain)), middle = middleOf(control);
    return Math.round(POSITIONS * (middle === null ? inside : unbent(inside, middle)));
  }

  function values(view) {
    if (view === "results") return { item: page.item };
    const values = {};
    Object.keys(spec[view]).forEach((key) => { values[key] = field(view, key).value; });
    return values;
  }

  function fill(view, given) {
    if (view === "results") { page.item = given.item; return; }
    Object.entries(given).forEach(([key, value]) => {
      field(view, key).value = value;
      const slider = range(view, key);
      if (slider) slider.value = positionOf(spec[view][key], value);
    });
  }

  function slid(slider) {
    const view = slider.form.dataset.form, key = slider.dataset.key, control = spec[view][key];
    const box = field(view, key), position = Number(slider.value);
    let value = valueAt(control, position);
    if (control.kind === "count" && box.value !== "" && Number(value) === Number(box.value)) {
      const before = positionOf(control, box.value); // small counts have several positions: a key still moves by one
      if (position === before) return;
      value = String(Math.min(control.slide[1], Math.max(control.slide[0], Number(value) + (position > before ? 1 : -1))));
      slider.value = positionOf(control, value);
    }
    box.value = value;
    changed();
  }

  function typed(box) {
    const view = box.form.dataset.form, slider = range(view, box.name);
    if (slider && box.value !== "") slider.value = positionOf(spec[view][box.name], box.value);
    changed();
  }

  // ---- the address -------------------------------------------------------------------------------------------------
  function searchOf(view) {
    const pairs = [["view", view]];
    Object.entries(values(view)).forEach(([key, value]) => {
      if (value !== spec[view][key].default) pairs.push([key, value]);
    });
    return "?" + new URLSearchParams(pairs).toString();
  }

  function changed(other) {
    const now = performance.now(), search = searchOf(page.view);
    page.timing = { asked: now };
    if (search !== location.search) {
      if (other || now - page.lastChange > SETTLED) history.pushState(null, "", search);
      else history.replaceState(null, "", search);
    }
    page.lastChange = now;
    show(page.view);
    ask({ search: search, fill: false });
  }

  function read() { // on load and on the back button: the address decides
    page.timing = { asked: performance.now() };
    ask({ search: location.search, fill: true });
  }

  // ---- the server --------------------------------------------------------------------------------------------------
  function load(what, search, signal) {
    const address = what + (search || "?") + (search.length > 1 ? "&" : "") + "look=" + page.look;
    return fetch(address, { signal: signal })
      .then((response) => { if (!response.ok) throw new Error(String(response.status)); return response.json(); });
  }

  function ask(wanted) {
    if (page.picture) page.picture.abort(); // of values that are not those any more
    if (page.busy) { page.waiting = { search: wanted.search, fill: wanted.fill || (page.waiting || {}).fill }; return; }
    page.busy = true;
    load("answer", wanted.search)
      .then((answer) => answered(wanted, answer))
      .catch((error) => {
        console.warn("explorer:", error);
        announce("The explorer does not answer. Is `unhinge explore` still running?");
      })
      .finally(() => {
        page.busy = false;
        const next = page.waiting;
        page.waiting = null;
        if (next) ask(next);
      });
  }

  /* The moving picture comes after the curves, and not while a slider is still moving. */
  function askPicture(view, search) {
    const own = new AbortController();
    page.picture = own;
    load("picture", search, own.signal)
      .then((answer) => {
        if (view !== page.view || page.picture !== own || !answer.figures) return null;
        Object.assign(page.code[view], answer.code);
        return draw(view, answer);
      })
      .catch((error) => { if (error.name !== "AbortError") console.warn("explorer:", error); })
      .finally(() => { if (page.picture === own) page.picture = null; });
  }

  async function answered(wanted, answer) {
    page.timing.received = performance.now();
    const view = answer.view;
    if (wanted.fill) {
      page.view = view;
      fill(view, answer.values);
      const search = searchOf(view);
      if (search !== location.search) history.replaceState(null, "", search);
      show(view);
    }
    const typo = Boolean(answer.notice) && !wanted.fill; // what was typed cannot be read: leave the curves, and say so
    announce(typo ? answer.notice.replaceAll(" The default is shown instead.", "") + " The curves are those of the last values that could be read." : answer.notice);
    if (view !== "results") {
      all(`form[data-form="${view}"] [data-control]`).forEach((part) => {
        part.classList.toggle("invalid", answer.invalid.includes(part.dataset.control));
        part.querySelectorAll("input[type=text]").forEach((box) => box.setAttribute("aria-invalid", String(part.classList.contains("invalid"))));
      });
    }
    byId("export").href = "export" + searchOf(view) + "&look=" + page.look;
    offerLive(view);
    if (view === "results") {
      await shelf();
      window.dash_clientside.set_props("request-results", { data: { search: searchOf(view), look: page.look } });
    } else if (view === page.view) {
      byId("view-" + view).classList.toggle("stale", Boolean(answer.failed) || typo);
      if (!typo) byId("told-" + view).innerHTML = answer.told;
      if (!answer.failed && !typo) {
        page.code[view] = answer.code;
        choose(view, answer.chosen);
        await draw(view, answer);
      }
    }
    page.timing.drawn = performance.now();
    page.timing.search = wanted.search;
    if (view === page.view && answer.figures && !typo && !page.waiting && moves(view)) askPicture(view, wanted.search);
    page.answers += 1;
  }

  /* A page with live sliders has what live.js can compute: equal class sizes, gradient flow, a constant rate. */
  function offerLive(view) {
    const now = values(view), button = byId("live");
    const can = view === "free" && now.profile === "balanced" && now.start !== "own" && now.optimizer === "flow" && now.schedule === "constant";
    button.hidden = !can;
    if (can) button.href = "live" + searchOf(view);
  }

  /* Dash draws the results; its scripts are started, in order, when they are first wanted. */
  let started = null;
  function shelf() {
    started = started || startDash();
    return started;
  }

  async function startDash() {
    for (const still of byId("dash").content.querySelectorAll("script")) {
      const script = document.createElement("script");
      Array.from(still.attributes).forEach((part) => script.setAttribute(part.name, part.value));
      script.textContent = still.textContent;
      const come = still.src ? new Promise((done) => { script.onload = done; script.onerror = done; }) : null;
      document.body.appendChild(script);
      await come;
    }
    while (!byId("results-body")) await new Promise((done) => { setTimeout(done, 40); });
  }

  /* Where a control is empty the theory chose: say what, and put the slider there. */
  function choose(view, chosen) {
    page.critical[view] = chosen.critical;
    Object.entries(chosen).forEach(([key, value]) => {
      const box = field(view, key);
      if (!box) return;
      const text = String(Number(value.toPrecision(4)));
      box.placeholder = "auto " + text;
      if (box.value === "") range(view, key).value = positionOf(spec[view][key], text);
    });
  }

  const moves = (view) => Boolean(document.querySelector(`[data-frames^="${view}-"]`));

  function draw(view, answer) {
    return Promise.all(Object.entries(answer.figures).map(([key, figure]) => {
      const name = view + "-" + key, place = byId("graph-" + name);
      byId("title-" + name).textContent = answer.titles[key];
      if (figure.player) stage(name, figure);
      if (!figure.player) compare(view, key, figure);
      const same = JSON.stringify([figure.data, figure.layout]);
      if (page.drawn[name] === same && !figure.player) return null;
      page.drawn[name] = same;
      return window.Plotly.react(place, figure.data, figure.layout, { displayModeBar: false, responsive: true });
    }));
  }

  // ---- pinned curves -----------------------------------------------------------------------------------------------
  /* The pinned curves lie under the present ones, thin and gray; the axes make room for both. */
  function compare(view, key, figure) {
    page.present[view + "-" + key] = figure.data;
    const pinned = (page.pinned[view] || {})[key];
    if (!pinned) return;
    const gray = page.look === "dark" ? "#9aa3ad" : "#8a919a";
    const under = pinned.map((trace) => Object.assign({}, trace, {
      name: "pinned: " + trace.name, showlegend: false, opacity: 0.75,
      line: Object.assign({}, trace.line, { color: gray, width: 1.5 }), marker: Object.assign({}, trace.marker, { color: gray }),
    }));
    figure.data = under.concat(figure.data);
    [figure.layout.xaxis, figure.layout.yaxis].forEach((axis) => { if (axis.type === "log") delete axis.range; });
  }

  function pin(button) {
    if (page.view === "results") return;
    const pinned = !page.pinned[page.view];
    if (pinned) {
      const kept = {};
      Object.entries(page.present).forEach(([name, data]) => {
        const cut = name.indexOf("-");
        if (name.slice(0, cut) === page.view) kept[name.slice(cut + 1)] = data;
      });
      page.pinned[page.view] = kept;
    } else delete page.pinned[page.view];
    marked(button);
    changed();
  }

  function marked(button) {
    const pinned = Boolean(page.pinned[page.view]);
    button.textContent = pinned ? "Unpin" : "Pin";
    button.setAttribute("aria-pressed", String(pinned));
  }

  function announce(words) {
    if (byId("notice").textContent === words) return;
    byId("notice").textContent = words;
    window.dispatchEvent(new Event("resize")); // the panels have more or less room now
  }

  function tell(story) {
    byId("story").firstElementChild.textContent = story;
    byId("story").classList.toggle("shown", Boolean(story));
    window.dispatchEvent(new Event("resize"));
  }

  // ---- moving pictures ---------------------------------------------------------------------------------------------
  function stage(name, figure) {
    halt(name);
    page.moving[name] = { frames: figure.frames, player: figure.player, timer: null };
    const slider = document.querySelector(`[data-frames="${name}"]`);
    slider.max = Math.max(0, figure.frames.length - 1);
    slider.value = figure.player.first;
    moment(name, figure.player.first);
  }

  function moment(name, place) {
    const player = page.moving[name].player, time = player.moments[place];
    byId("moment-" + name).textContent = player.unit + " " + Number(time === undefined ? 0 : time).toLocaleString("en", { maximumSignificantDigits: 4 });
  }

  function turn(name, place) {
    const frame = page.moving[name].frames[place];
    if (!frame) return;
    const update = {};
    ["x", "y", "z"].forEach((axis) => {
      if (frame.data.length && frame.data[0][axis]) update[axis] = frame.data.map((trace) => trace[axis]);
    });
    document.querySelector(`[data-frames="${name}"]`).value = place;
    moment(name, place);
    window.Plotly.restyle(byId("graph-" + name), update, frame.traces);
  }

  function halt(name) {
    const moving = page.moving[name];
    if (moving && moving.timer) { clearInterval(moving.timer); moving.timer = null; }
    const button = document.querySelector(`[data-do="play"][data-graph="${name}"]`);
    if (button) button.textContent = "▶ Play";
  }

  function play(button) {
    const name = button.dataset.graph, moving = page.moving[name];
    if (!moving) return;
    if (moving.timer) { halt(name); return; }
    const slider = document.querySelector(`[data-frames="${name}"]`);
    let place = Number(slider.value) >= moving.frames.length - 1 ? -1 : Number(slider.value);
    button.textContent = "❚❚ Pause";
    moving.timer = setInterval(() => {
      place += 1;
      if (place >= moving.frames.length) { halt(name); return; }
      turn(name, place);
    }, FRAME);
  }

  // ---- what is shown -----------------------------------------------------------------------------------------------
  function show(view) {
    all("section.view").forEach((part) => { part.hidden = part.id !== "view-" + view; });
    all("[role=tab]").forEach((tab) => {
      tab.setAttribute("aria-selected", String(tab.dataset.view === view));
      tab.tabIndex = tab.dataset.view === view ? 0 : -1;
    });
    marked(document.querySelector("[data-do=pin]"));
    if (view === "results") return;
    const now = values(view);
    all(`form[data-form="${view}"] [data-control]`).forEach((part) => {
      const key = part.dataset.control;
      const sizes = ["classes", "per_class", "ratio", "counts", "dim", "profile", "seed"].includes(key);
      const apart = part.dataset.when && !part.dataset.in.split(" ").includes(now[part.dataset.when]);
      part.hidden = Boolean(apart || (sizes && now.start === "own"));
    });
  }

  function wear(look) {
    page.look = look;
    document.documentElement.dataset.look = look;
    byId("look").textContent = look === "dark" ? "Light" : "Dark";
  }

  function upload(chooser) {
    const view = chooser.dataset.upload, file = chooser.files[0], words = byId("uploaded-" + view);
    if (!file) return;
    words.textContent = "reading " + file.name + " ...";
    fetch("upload", { method: "POST", body: file, headers: { "X-Unhinge": "1", "Content-Type": "application/octet-stream" } })
      .then((response) => response.json().catch(() => ({ error: response.status === 413 ? "the file is too large." : "it was refused." })))
      .then((said) => {
        words.textContent = said.error ? "✘ " + file.name + ": " + said.error : "✔ " + file.name + ": " + said.words;
        if (said.error) return;
        field(view, "file").value = said.name;
        changed();
      })
      .catch(() => { words.textContent = "✘ the file did not arrive."; });
    chooser.value = "";
  }

  // ---- saving ------------------------------------------------------------------------------------------------------
  function offer(name, kind, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const quoted = (text) => (/[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text);

  function asCsv(name) {
    const moving = page.moving[name], graph = byId("graph-" + name);
    if (moving) {
      const rows = ["time,points,x,y,z"];
      moving.frames.forEach((frame, place) => frame.data.forEach((trace, i) => trace.x.forEach((x, k) => {
        rows.push([moving.player.moments[place], quoted(graph.data[i].name), x, trace.y[k], trace.z ? trace.z[k] : ""].join(","));
      })));
      return rows.join("\n") + "\n";
    }
    const rows = ["curve,x,y"];
    graph.data.forEach((trace) => Array.from(trace.x || []).forEach((x, i) => {
      const y = trace.y[i];
      rows.push([quoted(trace.name || ""), x, y === null || y === undefined ? "" : y].join(","));
    }));
    return rows.join("\n") + "\n";
  }

  function save(name, kind) {
    const graph = byId("graph-" + name), file = "unhinge-" + name;
    if (kind === "csv") return offer(file + ".csv", "text/csv", asCsv(name));
    if (kind === "python") return showCode(name);
    const size = { width: Math.max(700, graph.clientWidth), height: Math.max(450, graph.clientHeight) };
    return window.Plotly.downloadImage(graph, Object.assign({ format: kind, filename: file, scale: kind === "png" ? 2 : 1 }, size));
  }

  function showCode(name) {
    const cut = name.indexOf("-"), dialog = byId("code");
    dialog.dataset.name = name;
    byId("code-text").textContent = (page.code[name.slice(0, cut)] || {})[name.slice(cut + 1)] || "# not ready yet";
    dialog.showModal();
  }

  function copy(text, button) {
    const before = button.textContent;
    const said = (word) => { button.textContent = word; setTimeout(() => { button.textContent = before; }, 1200); };
    if (!navigator.clipboard) return said("not allowed");
    return navigator.clipboard.writeText(text).then(() => said("copied"), () => said("not allowed"));
  }

  const DO = {
    save: (button) => { save(button.dataset.graph, button.dataset.kind); button.closest("details").open = false; },
    play: play,
    "copy-link": (button) => copy(location.href, button),
    "copy-code": (button) => copy(byId("code-text").textContent, button),
    "save-code": () => offer("unhinge-" + byId("code").dataset.name + ".py", "text/x-python", byId("code-text").textContent + "\n"),
    "close-code": () => byId("code").close(),
    pin: pin,
    lesson: (button) => {
      button.closest("details").open = false;
      history.pushState(null, "", button.dataset.address);
      read();
      tell(button.dataset.story);
    },
    "end-story": () => tell(""),
    reset: () => { history.pushState(null, "", "?view=" + page.view); read(); },
    item: (button) => { page.item = button.dataset.item; changed(true); },
    look: () => {
      const look = page.look === "dark" ? "light" : "dark";
      try { localStorage.setItem("unhinge-look", look); } catch (error) { /* private windows */ }
      wear(look);
      changed();
    },
  };

  // ---- events ------------------------------------------------------------------------------------------------------
  let typing = null;
  document.addEventListener("input", (event) => {
    const target = event.target;
    if (target.matches("input.slider")) slid(target);
    else if (target.dataset.frames) { halt(target.dataset.frames); turn(target.dataset.frames, Number(target.value)); }
    else if (target.matches("form.controls input[type=text]")) {
      clearTimeout(typing);
      typing = setTimeout(() => typed(target), TYPING);
    } else if (target.matches("form.controls input[type=radio]")) changed();
  });
  document.addEventListener("change", (event) => { if (event.target.dataset.upload) upload(event.target); });
  document.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("popstate", read);
  document.addEventListener("click", (event) => {
    hint(null); // what was explained has been done
    const button = event.target.closest("[data-do]"), tab = event.target.closest("[data-view]");
    if (button && DO[button.dataset.do]) { event.preventDefault(); DO[button.dataset.do](button); return; }
    if (tab && tab.dataset.view !== page.view) { page.view = tab.dataset.view; tell(""); changed(true); }
    all("details.save[open]").forEach((part) => { if (!part.contains(event.target)) part.open = false; });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      hint(null);
      all("details.save[open]").forEach((part) => { part.open = false; });
    }
    if (event.target.matches("[role=tab]") && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
      const tabs = all("[role=tab]");
      const next = tabs[(tabs.indexOf(event.target) + (event.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length];
      next.focus();
      next.click();
    }
  });

  function hint(target) {
    const box = byId("tooltip");
    if (!target) { box.classList.remove("shown"); return; }
    box.textContent = target.dataset.tip;
    box.classList.add("shown");
    const place = target.getBoundingClientRect(), size = box.getBoundingClientRect();
    const below = place.bottom + 6 + size.height < window.innerHeight;
    box.style.left = Math.min(Math.max(6, place.left), window.innerWidth - size.width - 6) + "px";
    box.style.top = (below ? place.bottom + 6 : place.top - size.height - 6) + "px";
  }
  ["mouseover", "focusin"].forEach((kind) => document.addEventListener(kind, (event) => {
    hint((event.target.closest && event.target.closest("[data-tip]")) || null);
  }));

  // ---- begin -------------------------------------------------------------------------------------------------------
  let look = null;
  try { look = localStorage.getItem("unhinge-look"); } catch (error) { /* private windows */ }
  wear(look || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  all("input.slider").forEach((slider) => { // an answer fills only the view it is for
    const view = slider.form.dataset.form, key = slider.dataset.key;
    slider.value = positionOf(spec[view][key], field(view, key).value);
  });
  if (matchMedia("(max-width: 800px)").matches) all("details.parameters").forEach((part) => { part.open = false; });
  read();
})();
