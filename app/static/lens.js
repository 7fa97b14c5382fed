// Draws one pair: the photo with a map over it, the caption with each word shaded by its gate.
// Maps and gates that the scorer does not have are null. All maps are in the value, so pointing at a word needs no trip to the server. Text from outside
// only ever becomes textContent.

const COLOURS = [[13, 8, 135], [126, 3, 168], [204, 71, 120], [248, 149, 64], [240, 249, 33]];

function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (COLOURS.length - 1);
  const lower = Math.min(Math.floor(place), COLOURS.length - 2);
  return COLOURS[lower].map((c, i) => c + (COLOURS[lower + 1][i] - c) * (place - lower));
}

function make(kind, className, text) {
  const node = document.createElement(kind);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function render() {
  const value = props.value;
  const root = element.querySelector(".lens") || element;
  root.replaceChildren();
  if (!value || !value.words) {
    root.append(make("p", "lens-empty", "Search, then choose a result to see why it matched."));
    return;
  }

  const stage = make("div", "lens-stage");
  const photo = make("img");
  photo.alt = "The photo of the chosen result";
  photo.src = value.photo;
  const canvas = make("canvas");
  canvas.setAttribute("aria-hidden", "true");
  stage.append(photo, canvas);

  const caption = make("p", "lens-caption");
  const modes = make("div", "lens-modes");
  const label = make("span", "lens-label");
  const bar = make("div", "lens-bar");
  const barEnds = make("div", "lens-ends");
  const least = make("span", "", "0");
  const most = make("span");
  barEnds.append(least, label, most);
  const rising = COLOURS.map((c) => `rgb(${c.join(",")})`).join(",");
  const dark = COLOURS[0].join(",");
  const clearing = `rgb(${dark}), rgba(${dark}, 0)`;

  let opacity = 0.6;
  let shown = null;

  function draw() {
    const context = canvas.getContext("2d");
    const size = 8;
    const scale = 32;
    canvas.width = canvas.height = size * scale;
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!shown.map) return;
    const small = document.createElement("canvas");
    small.width = small.height = size;
    const pixels = small.getContext("2d").createImageData(size, size);
    shown.map.flat().forEach((v, i) => {
      const share = v / shown.top;
      // Gates of a good match are nearly all open: what is closed is dimmed, the rest stays clear.
      const drawn = shown.dims ? [...COLOURS[0], 255 * (1 - share)] : [...colour(share), 255];
      pixels.data.set(drawn, 4 * i);
    });
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    canvas.style.opacity = opacity;
  }

  function show(next) {
    shown = next;
    label.textContent = next.label;
    most.textContent = next.map ? next.top.toFixed(2) : "";
    least.textContent = next.map ? "0" : "";
    bar.style.background = `linear-gradient(to right, ${next.dims ? clearing : rising})`;
    bar.style.visibility = next.map ? "visible" : "hidden";
    canvas.dataset.shown = next.label;
    root.querySelectorAll(".chosen").forEach((n) => n.classList.remove("chosen"));
    next.node.classList.add("chosen");
    draw();
  }

  function option(text, map, top, note) {
    const button = make("button", "", text);
    button.type = "button";
    const view = { label: note, map, top, node: button };
    button.addEventListener("click", () => show(view));
    modes.append(button);
    return view;
  }

  // The first one is shown: gates, because hiding regions in their order lowers the score fastest
  // (python -m matching.faithfulness, docs/results.md).
  const views = [];
  if (value.regions) {
    const note = "region gates: what is dark takes little part";
    const gates = option("Region gates", value.regions, 1, note);
    gates.dims = true;
    views.push(gates);
  }
  if (value.whole) {
    views.push(option("Whole caption", value.whole, value.top, "attention, largest of all words"));
  }
  views.push(option("Photo", null, 1, "the photo alone"));

  let at = 0;
  value.words.forEach((word) => {
    caption.append(document.createTextNode(value.caption.slice(at, word.start)));
    const text = value.caption.slice(word.start, word.end);
    const node = make("button", "lens-word", text);
    node.type = "button";
    const notes = word.map ? [`${value.map_of} “${text}”`] : [`“${text}”`];
    if (word.gate !== null) {
      notes.push(`gate ${word.gate.toFixed(2)}`);
      node.title = notes[1];
    }
    node.style.setProperty("--gate", word.gate ?? 0);
    const view = { label: notes.join(", "), map: word.map, top: value.top, node };
    for (const name of ["pointerenter", "focus", "click"]) {
      node.addEventListener(name, () => show(view));
    }
    caption.append(node);
    at = word.end;
  });
  caption.append(document.createTextNode(value.caption.slice(at)));

  const slider = make("input");
  slider.type = "range";
  slider.min = 0;
  slider.max = 1;
  slider.step = 0.05;
  slider.value = opacity;
  slider.setAttribute("aria-label", "Opacity of the map");
  slider.addEventListener("input", () => { opacity = Number(slider.value); draw(); });
  const strength = make("label", "lens-strength", "Opacity ");
  strength.append(slider);
  modes.append(strength);

  root.append(
    make("h3", "lens-heading", value.heading), stage, bar, barEnds, caption,
    make("p", "lens-hint", value.hint),
    modes, make("p", "lens-numbers", value.numbers), make("p", "lens-credit", value.credit),
  );
  show(views[0]);
}

render();
watch("value", render);
