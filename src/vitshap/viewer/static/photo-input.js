// A photo as a model takes it: decoded, upright, resized, cropped and normalised, number by number as vitshap's Preprocess
// does with Pillow. A canvas scales images in another way, and values would differ.

const FRACTION_BITS = 22; // of Pillow's fixed-point weights
const HALF_UNIT = 2 ** (FRACTION_BITS - 1);
const MOST_RESIZED = 2 ** 25; // pixels; of a longer image only the crop is resized
const MOST_DECODED = 178e6;
const FILTERS = {
  bilinear: { reach: 1, at: (x) => Math.max(1 - Math.abs(x), 0) },
  bicubic: { reach: 2, at: cubic },
  lanczos: { reach: 3, at: (x) => Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0 },
};

function cubic(given) {
  const x = Math.abs(given);
  if (x < 1) { return (1.5 * x - 2.5) * x * x + 1; }
  return x < 2 ? -0.5 * (((x - 5) * x + 8) * x - 4) : 0;
}

function sinc(x) { return x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI); }

function roundHalfToEven(x) {
  const below = Math.floor(x);
  return x - below === 0.5 ? below + (Math.abs(below) % 2) : Math.round(x);
}

// Decode a file: { data: RGBA, width, height }. Colour profiles are ignored, as Pillow does.
export async function decodePhoto(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none", imageOrientation: "from-image" });
  } catch { throw new Error("this browser cannot read the file as a photo: use JPEG, PNG or WebP"); }
  const { width, height } = bitmap;
  if (width * height > MOST_DECODED) { throw new Error(`the photo has ${width} \u00d7 ${height} pixels, more than a browser can hold`); }
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return { data: context.getImageData(0, 0, width, height).data, width, height };
}

// Opaque channels, interleaved: transparency on white, and one channel of grey if the model takes one.
function channelsOf({ data, width, height }, channels) {
  const found = new Uint8Array(width * height * channels);
  for (let i = 0; i < width * height; i += 1) {
    const alpha = data[4 * i + 3];
    const [red, green, blue] = [0, 1, 2].map((c) => alpha === 255 ? data[4 * i + c] : onWhite(data[4 * i + c], alpha));
    if (channels === 1) { found[i] = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16; continue; }
    found[3 * i] = red;
    found[3 * i + 1] = green;
    found[3 * i + 2] = blue;
  }
  return found;
}

function onWhite(value, alpha) {
  const sum = 128 * (value * alpha + 255 * (255 - alpha)) + 0x4000;
  return (((sum >> 8) + sum) >> 8) >> 7;
}

// For each output pixel from `first` on: where its inputs start, and their weights as integers.
function resampling(size, [from, to], outputs, first, count, { reach, at }) {
  const scale = (to - from) / outputs;
  const stretch = Math.max(scale, 1);
  const support = reach * stretch;
  return Array.from({ length: count }, (_, i) => {
    const centre = from + (first + i + 0.5) * scale;
    const start = Math.max(Math.trunc(centre - support + 0.5), 0);
    const end = Math.min(Math.trunc(centre + support + 0.5), size);
    const weights = new Float64Array(end - start);
    let sum = 0;
    for (let x = 0; x < weights.length; x += 1) {
      weights[x] = at((x + start - centre + 0.5) * (1 / stretch));
      sum += weights[x];
    }
    const whole = weights.map((weight) => {
      const part = (sum === 0 ? weight : weight / sum) * 2 ** FRACTION_BITS;
      return Math.trunc(part < 0 ? part - 0.5 : part + 0.5);
    });
    return { start, weights: whole };
  });
}

function clipped(sum) { return Math.min(Math.max(sum >> FRACTION_BITS, 0), 255); }

// Resample along rows the rows from `top` to `bottom`: [bottom - top, places, channels].
function narrowed(image, { width, channels }, places, top, bottom) {
  const found = new Uint8Array((bottom - top) * places.length * channels);
  let to = 0;
  for (let y = top; y < bottom; y += 1) {
    for (const { start, weights } of places) {
      for (let c = 0; c < channels; c += 1) {
        let sum = HALF_UNIT;
        let at = (y * width + start) * channels + c;
        for (let i = 0; i < weights.length; i += 1, at += channels) { sum += image[at] * weights[i]; }
        found[to] = clipped(sum);
        to += 1;
      }
    }
  }
  return found;
}

// Resample along columns an image whose first row is the photo's row `top`: [places, width, channels].
function lowered(image, { width, channels }, places, top) {
  const stride = width * channels;
  const found = new Uint8Array(places.length * stride);
  places.forEach(({ start, weights }, y) => {
    for (let x = 0; x < stride; x += 1) {
      let sum = HALF_UNIT;
      let at = (start - top) * stride + x;
      for (let i = 0; i < weights.length; i += 1, at += stride) { sum += image[at] * weights[i]; }
      found[y * stride + x] = clipped(sum);
    }
  });
  return found;
}

// Both passes round to 8 bits, so that their order matters.
function resampled(image, shape, across, down, columnsFirst) {
  if (columnsFirst) { return narrowed(lowered(image, shape, down, 0), shape, across, 0, down.length); }
  const top = Math.min(...down.map(({ start }) => start));
  const bottom = Math.max(...down.map(({ start, weights }) => start + weights.length));
  return lowered(narrowed(image, shape, across, top, bottom), { ...shape, width: across.length }, down, top);
}

// The input of each output pixel for the filter "nearest".
function nearest(size, [from, to], outputs, first, count) {
  const scale = (to - from) / outputs;
  const places = [];
  let at = from + 0.5 * scale;
  for (let i = 0; i < first + count; i += 1, at += scale) {
    if (i >= first) { places.push({ start: Math.min(Math.trunc(at), size - 1), weights: [2 ** FRACTION_BITS] }); }
  }
  return places;
}

// Where the model looks: the size of the resized photo and the corner of the crop, as in models/preprocess.py.
function cropOf({ width, height }, { size, resize, squash }) {
  let [down, across] = resize;
  if (!squash && resize[0] * width <= resize[1] * height) {
    down = Math.trunc(resize[1] * height / width);
  } else if (!squash) { across = Math.trunc(resize[0] * width / height); }
  return { down, across, top: roundHalfToEven((down - size[0]) / 2), left: roundHalfToEven((across - size[1]) / 2) };
}

// The model's input, float32 [C, H, W], and the box of the photo that it shows. `pillow`: the version whose numbers are
// wanted; from 13 on it resizes first along the side that shrinks much more.
export function modelInput(photo, preprocess, pillow = 13) {
  const { size: [rows, columns], mean, std, interpolation } = preprocess;
  const { width, height } = photo;
  const { down, across, top, left } = cropOf(photo, preprocess);
  const [x, y] = [width / across, height / down];
  const box = [left * x, top * y, (left + columns) * x, (top + rows) * y];
  const part = down * across > MOST_RESIZED;
  const places = interpolation === "nearest" ? nearest : resampling;
  const filter = FILTERS[interpolation];
  const wide = part ? places(width, [box[0], box[2]], columns, 0, columns, filter) : places(width, [0, width], across, left, columns, filter);
  const tall = part ? places(height, [box[1], box[3]], rows, 0, rows, filter) : places(height, [0, height], down, top, rows, filter);
  const channels = mean.length;
  const [newWidth, newHeight] = part ? [columns, rows] : [across, down];
  const columnsFirst = pillow >= 13 && newHeight < height && height - newHeight > 2 * (width - newWidth);
  const seen = resampled(channelsOf(photo, channels), { width, channels }, wide, tall, columnsFirst);
  const pixels = new Float32Array(channels * rows * columns);
  for (let c = 0; c < channels; c += 1) {
    const [centre, scale] = [Math.fround(mean[c]), Math.fround(std[c])];
    const table = Float32Array.from({ length: 256 }, (_, value) => Math.fround(Math.fround(value / 255) - centre) / scale);
    for (let i = 0; i < rows * columns; i += 1) { pixels[c * rows * columns + i] = table[seen[i * channels + c]]; }
  }
  return { pixels, box };
}
