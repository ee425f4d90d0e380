// Body of the callback that runs when the page is ready: it draws the map that is chosen, and the
// overview. `_page` in explorer.py lists its arguments; explorer.html has the form.
const {method: menu, values: slider, layer: layer_menu, head: head_menu, colours: scale_menu} =
  document.getElementById("menus").elements;
const all = codes.data.codes;
const size = triangle ? cells * (cells + 1) / 2 : cells * cells;
const side = thumb + 1;

// Python stores 2048 log2(weight) + 65535, 1 for less than 2^-32 and 0 for hidden keys.
function weight(code) {
  return code === 0 ? NaN : code === 1 ? 0 : Math.pow(2, (code - 65535) / 2048);
}
function start(method, l, h) {
  return ((method * layers.length + l) * heads.length + h) * size;
}
function place(row, column) {
  return triangle ? row * (row + 1) / 2 + column : row * cells + column;
}

function choose_method() {
  const {rest, values} = methods[menu.value];
  slider.max = rest.length - 1;
  slider.value = 0;
  slider.previousElementSibling.textContent = values;
  slider.parentElement.hidden = rest.length === 1;
}

function draw_map() {
  const {index, rest, label} = methods[menu.value], at = slider.valueAsNumber;
  const layer = layer_menu.selectedIndex, head = head_menu.selectedIndex;
  const first = start(index[at], layer, head), shown = map.data.image[0];
  let greatest = 0;
  for (let row = 0; row < cells; row++) {
    for (let column = 0; column < cells; column++) {
      const hidden = triangle && column > row;
      const value = hidden ? NaN : weight(all[first + place(row, column)]);
      shown[row * cells + column] = value;
      if (value > greatest) { greatest = value; }
    }
  }
  logarithmic.high = linear.high = greatest > 0 ? greatest : 1;
  logarithmic.low = logarithmic.high * 1e-4;
  map_image.glyph.color_mapper = scale_menu.value === "linear" ? linear : logarithmic;
  bar.color_mapper = map_image.glyph.color_mapper;
  map.change.emit();
  slider.nextElementSibling.value = rest[at];
  title.text = `layer ${layers[layer]}, head ${heads[head]}: ${label[at]}`;
  marked.data = {x: [head * side + thumb / 2], y: [layer * side + thumb / 2]};
}

// The overview has the greatest weight of some cells, on a scale of codes, which is logarithmic.
function draw_overview() {
  const method = methods[menu.value].index[slider.valueAsNumber];
  const sheet = overview.data.image[0], width = heads.length * side;
  sheet.fill(NaN);
  for (let l = 0; l < layers.length; l++) {
    for (let h = 0; h < heads.length; h++) {
      const first = start(method, l, h);
      for (let row = 0; row < cells; row++) {
        const r = Math.floor(row * thumb / cells);
        for (let column = 0; column < (triangle ? row + 1 : cells); column++) {
          const code = all[first + place(row, column)];
          if (code === 0) { continue; }
          const at = (l * side + r) * width + h * side + Math.floor(column * thumb / cells);
          if (!(sheet[at] >= code)) { sheet[at] = code; }
        }
      }
    }
  }
  overview.change.emit();
}

// A notebook's theme makes the page dark or light; elsewhere it is the system's.
const frame = window.frameElement, system = matchMedia("(prefers-color-scheme: dark)");
function choose_theme() {
  const light = frame?.ownerDocument.body.dataset.jpThemeLight;
  const dark = light === undefined ? system.matches : light === "false";
  const root = document.documentElement;
  root.dataset.theme = dark ? "dark" : "light";
  // Bokeh reads the other colours from the page's style.
  const colour = (name) => getComputedStyle(root).getPropertyValue(name);
  for (const mapper of [logarithmic, linear, overview_colours]) { mapper.nan_color = colour("--hidden"); }
  bar.title_text_color = bar.major_label_text_color = colour("--text");
}

function draw() {
  draw_map();
  draw_overview();
}

menu.addEventListener("change", () => { choose_method(); draw(); });
slider.addEventListener("input", draw);
for (const each of [layer_menu, head_menu, scale_menu]) { each.addEventListener("change", draw_map); }
overview_figure.js_event_callbacks = {tap: [({x, y}) => {
  const column = Math.floor(x / side), row = Math.floor(y / side);
  if (row < 0 || row >= layers.length || column < 0 || column >= heads.length) { return; }
  layer_menu.selectedIndex = row;
  head_menu.selectedIndex = column;
  draw_map();
}]};
system.addEventListener("change", choose_theme);
if (frame) {
  const theme = {attributeFilter: ["data-jp-theme-light"]};
  new MutationObserver(choose_theme).observe(frame.ownerDocument.body, theme);
  new ResizeObserver(() => {
    frame.style.height = `${Math.ceil(document.body.getBoundingClientRect().height)}px`;
  }).observe(document.body);
}
choose_theme();
choose_method();
draw();
