// Body of every callback of the explorer: it draws the chosen map and the overview.
// `_page` in explorer.py lists its arguments.
if (cause === "menu") {
  const {rest} = methods[menu.value];
  slider.visible = rest.length > 1;
  slider.categories = rest;
  slider.value = rest[0];
}
if (cause === "tap") {
  const column = Math.floor(cb_obj.x / (thumb + 1)), row = Math.floor(cb_obj.y / (thumb + 1));
  if (row < 0 || row >= layers.length || column < 0 || column >= heads.length) { return; }
  layer_menu.value = layers[row];
  head_menu.value = heads[column];
}
const group = methods[menu.value];
const method = group.index[Math.max(0, group.rest.indexOf(slider.value))];
const layer = layers.indexOf(layer_menu.value), head = heads.indexOf(head_menu.value);
const all = codes.data.codes;
const size = triangle ? cells * (cells + 1) / 2 : cells * cells;

// Python stores 2048 log2(weight) + 65535, 1 for less than 2^-32 and 0 for hidden keys.
function weight(code) {
  return code === 0 ? NaN : code === 1 ? 0 : Math.pow(2, (code - 65535) / 2048);
}
function start(l, h) {
  return ((method * layers.length + l) * heads.length + h) * size;
}
function place(row, column) {
  return triangle ? row * (row + 1) / 2 + column : row * cells + column;
}

const shown = map.data.image[0];
let greatest = 0;
for (let row = 0; row < cells; row++) {
  for (let column = 0; column < cells; column++) {
    const hidden = triangle && column > row;
    const value = hidden ? NaN : weight(all[start(layer, head) + place(row, column)]);
    shown[row * cells + column] = value;
    if (value > greatest) { greatest = value; }
  }
}
logarithmic.high = linear.high = greatest > 0 ? greatest : 1;
logarithmic.low = logarithmic.high * 1e-4;
map_image.glyph.color_mapper = scale_menu.value === "linear" ? linear : logarithmic;
bar.color_mapper = map_image.glyph.color_mapper;
map.change.emit();
const name = `layer ${layers[layer]}, head ${heads[head]}`;
title.text = `${name}: ${group.label[group.index.indexOf(method)]}`;

// The overview has the greatest weight of some cells, on a scale of codes, which is logarithmic.
if (["start", "menu", "slider"].includes(cause)) {
  const sheet = overview.data.image[0], width = heads.length * (thumb + 1);
  for (let l = 0; l < layers.length; l++) {
    for (let h = 0; h < heads.length; h++) {
      const first = start(l, h);
      for (let r = 0; r < thumb; r++) {
        for (let c = 0; c < thumb; c++) { sheet[(l * (thumb + 1) + r) * width + h * (thumb + 1) + c] = NaN; }
      }
      for (let row = 0; row < cells; row++) {
        const r = Math.floor(row * thumb / cells);
        for (let column = 0; column < (triangle ? row + 1 : cells); column++) {
          const code = all[first + place(row, column)];
          if (code === 0) { continue; }
          const at = (l * (thumb + 1) + r) * width + h * (thumb + 1) + Math.floor(column * thumb / cells);
          if (!(sheet[at] >= code)) { sheet[at] = code; }
        }
      }
    }
  }
  overview.change.emit();
}
marked.data = {x: [head * (thumb + 1) + thumb / 2], y: [layer * (thumb + 1) + thumb / 2]};
