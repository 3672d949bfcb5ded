/** Images to a normalised batch, to the byte as Pillow does it: resize, crop, and the backbone's constants. */

import { PlutoError } from "./errors.js";
import type { Preprocessing } from "./manifest.js";

/** Bytes, row after row; 1 (grey), 3 (RGB) or 4 (RGBA, whose alpha is left out) of them a pixel. */
export interface Picture {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8Array | Uint8ClampedArray;
}

interface Rgb extends Picture {
  readonly data: Uint8Array;
}

const BITS = 22; // Pillow's fixed point: 32 - 8 - 2
const MAX_LENGTH = 32_768; // of the longer side once it is scaled; what is beyond is cut off first

type Kernel = { readonly support: number; readonly at: (x: number) => number };

const sinc = (x: number) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const KERNELS: Record<string, Kernel> = {
  box: { support: 0.5, at: (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) },
  bilinear: { support: 1, at: (x) => Math.max(1 - Math.abs(x), 0) },
  hamming: {
    support: 1,
    at: (x) => (Math.abs(x) >= 1 ? 0 : x === 0 ? 1 : sinc(x) * (0.54 + 0.46 * Math.cos(Math.PI * x))),
  },
  bicubic: {
    support: 2,
    at: (given) => {
      const x = Math.abs(given);
      if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
      return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
    },
  },
  lanczos: { support: 3, at: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

/** Python's round: halves go to the even neighbour. */
export function round(value: number): number {
  const down = Math.floor(value);
  const rest = value - down;
  return rest < 0.5 || (rest === 0.5 && down % 2 === 0) ? down : down + 1;
}

/** An image as RGB bytes. */
export function toRgb(picture: Picture): Rgb {
  const { width, height, data } = picture;
  const pixels = width * height;
  const channels = data.length / pixels;
  if (!(pixels > 0) || ![1, 3, 4].includes(channels)) {
    throw new PlutoError(`want 1, 3 or 4 bytes a pixel, got ${data.length} bytes for ${width} x ${height} pixels`);
  }
  const out = new Uint8Array(pixels * 3);
  for (let i = 0; i < pixels; i++) {
    for (let c = 0; c < 3; c++) out[3 * i + c] = data[channels * i + (channels === 1 ? 0 : c)]!;
  }
  return { width, height, data: out };
}

/** What is left of an image when it is resized and cropped as the backbone wants it: RGB bytes. */
export function crop(picture: Picture, p: Preprocessing): Uint8Array {
  let image = toRgb(picture);
  const [height, width] = p.size.map((side) => Math.floor(side / p.crop_pct)) as [number, number];
  if (p.crop_mode === "squash") return centre(scale(image, width, height, p.interpolation), p.size, [0, 0, 0]);
  if (p.crop_mode === "border") {
    const ratio = Math.max(image.height / height, image.width / width);
    const scaled = scale(image, round(image.width / ratio), round(image.height / ratio), p.interpolation);
    return centre(scaled, p.size, p.mean.map((m) => Math.min(Math.max(round(255 * m), 0), 255)));
  }
  const ratio = Math.min(image.height / height, image.width / width);
  image = shorten(image, ratio);
  if (height === width) {
    const short = Math.min(image.width, image.height);
    const tall = Math.trunc((height * image.height) / short);
    const wide = Math.trunc((height * image.width) / short);
    return centre(scale(image, wide, tall, p.interpolation), p.size, [0, 0, 0]);
  }
  const own = Math.min(image.height / height, image.width / width);
  // timm ignores the backbone's interpolation in this branch
  return centre(scale(image, round(image.width / own), round(image.height / own), "bilinear"), p.size, [0, 0, 0]);
}

/** The middle of an image that would be too long once it is scaled down by `ratio`. */
function shorten(image: Rgb, ratio: number): Rgb {
  const most = Math.max(Math.trunc(MAX_LENGTH * ratio), 1);
  if (Math.max(image.width, image.height) <= most) return image;
  const [width, height] = [image.width, image.height].map((side) =>
    side > most ? side - Math.floor((side - most) / 2) * 2 : side,
  ) as [number, number];
  return part(image, Math.floor((image.width - width) / 2), Math.floor((image.height - height) / 2), width, height, [0, 0, 0]);
}

/** The centre of an image; where it is smaller than `size`, a border. */
function centre(image: Rgb, [height, width]: readonly [number, number], fill: readonly number[]): Uint8Array {
  const wide = Math.max(width, image.width);
  const tall = Math.max(height, image.height);
  const left = round((wide - width) / 2) - Math.floor(Math.max(width - image.width, 0) / 2);
  const top = round((tall - height) / 2) - Math.floor(Math.max(height - image.height, 0) / 2);
  return part(image, left, top, width, height, fill).data;
}

function part(image: Rgb, left: number, top: number, width: number, height: number, fill: readonly number[]): Rgb {
  const data = new Uint8Array(width * height * 3);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const inside = x + left >= 0 && x + left < image.width && y + top >= 0 && y + top < image.height;
      const from = 3 * ((y + top) * image.width + x + left);
      for (let c = 0; c < 3; c++) data[3 * (y * width + x) + c] = inside ? image.data[from + c]! : fill[c]!;
    }
  }
  return { width, height, data };
}

/** Resized as Pillow's `Image.resize` does it, with an antialiasing kernel in fixed point. */
export function scale(image: Rgb, wide: number, tall: number, interpolation: string): Rgb {
  const width = Math.max(wide, 1);
  const height = Math.max(tall, 1);
  if (width === image.width && height === image.height) return image;
  if (interpolation === "nearest") return nearest(image, width, height);
  const kernel = KERNELS[interpolation];
  if (!kernel) throw new PlutoError(`interpolation: want one of ${Object.keys(KERNELS).join(", ")}, got ${interpolation}`);
  // as Pillow 13 has it; earlier ones always begin horizontally, and differ by a level here and there
  const vertically = height < image.height && image.height - height > 2 * (image.width - width);
  let found = image;
  for (const across of vertically ? [false, true] : [true, false]) {
    const size = across ? width : height;
    if (size !== (across ? image.width : image.height)) found = resample(found, size, kernel, across);
  }
  return found;
}

function nearest(image: Rgb, width: number, height: number): Rgb {
  const data = new Uint8Array(width * height * 3);
  const rows = places(image.height, height);
  const columns = places(image.width, width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const from = 3 * (rows[y]! * image.width + columns[x]!);
      for (let c = 0; c < 3; c++) data[3 * (y * width + x) + c] = image.data[from + c]!;
    }
  }
  return { width, height, data };
}

/** The nearest input pixel of every output pixel along one axis, added up as Pillow does it. */
function places(from: number, to: number): Int32Array {
  const out = new Int32Array(to);
  let at = (from / to) * 0.5;
  for (let x = 0; x < to; x++, at += from / to) out[x] = Math.min(Math.floor(at), from - 1);
  return out;
}

/** For every output pixel along one axis the first input pixel and the weights, in fixed point. */
function coefficients(from: number, to: number, kernel: Kernel): { first: Int32Array; weights: Int32Array[] } {
  const ratio = from / to;
  const stretch = Math.max(ratio, 1);
  const support = kernel.support * stretch;
  const first = new Int32Array(to);
  const weights: Int32Array[] = [];
  for (let x = 0; x < to; x++) {
    const middle = (x + 0.5) * ratio;
    const low = Math.max(Math.trunc(middle - support + 0.5), 0);
    const high = Math.min(Math.trunc(middle + support + 0.5), from);
    const own = new Float64Array(high - low);
    let total = 0;
    for (let i = 0; i < own.length; i++) total += own[i] = kernel.at((i + low - middle + 0.5) * (1 / stretch));
    first[x] = low;
    weights.push(
      Int32Array.from(own, (value) => {
        const share = total === 0 ? value : value / total;
        return Math.trunc((share < 0 ? -0.5 : 0.5) + share * 2 ** BITS);
      }),
    );
  }
  return { first, weights };
}

function resample(image: Rgb, size: number, kernel: Kernel, across: boolean): Rgb {
  const width = across ? size : image.width;
  const height = across ? image.height : size;
  const { first, weights } = coefficients(across ? image.width : image.height, size, kernel);
  const stride = across ? 3 : 3 * image.width;
  const from = image.data;
  const data = new Uint8Array(width * height * 3);
  const half = 1 << (BITS - 1);
  for (let y = 0, to = 0; y < height; y++) {
    for (let x = 0; x < width; x++, to += 3) {
      const own = weights[across ? x : y]!;
      let at = across ? 3 * (y * image.width + first[x]!) : 3 * (first[y]! * image.width + x);
      let [r, g, b] = [half, half, half];
      for (let i = 0; i < own.length; i++, at += stride) {
        const weight = own[i]!;
        r = (r + Math.imul(from[at]!, weight)) | 0;
        g = (g + Math.imul(from[at + 1]!, weight)) | 0;
        b = (b + Math.imul(from[at + 2]!, weight)) | 0;
      }
      data[to] = clip(r >> BITS);
      data[to + 1] = clip(g >> BITS);
      data[to + 2] = clip(b >> BITS);
    }
  }
  return { width, height, data };
}

function clip(value: number): number {
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/** Images in the backbone's size, as bytes; normalised when they are asked for. */
export class ImageBatch {
  private readonly table: Float32Array; // [3, 256]: the normalised value of every byte in every channel

  constructor(
    readonly crops: readonly Uint8Array[],
    readonly preprocessing: Preprocessing,
  ) {
    this.table = new Float32Array(3 * 256);
    const { mean, std } = preprocessing;
    for (let c = 0; c < 3; c++) {
      for (let byte = 0; byte < 256; byte++) {
        const shifted = Math.fround(Math.fround(byte / 255) - Math.fround(mean[c]!));
        this.table[c * 256 + byte] = shifted / Math.fround(std[c]!);
      }
    }
  }

  /** Any pictures, resized and cropped. */
  static of(pictures: readonly Picture[], preprocessing: Preprocessing): ImageBatch {
    if (!pictures.length) throw new PlutoError("want at least one picture, got none");
    return new ImageBatch(pictures.map((p) => crop(p, preprocessing)), preprocessing);
  }

  /** Batches one after the other. */
  static join(parts: readonly ImageBatch[]): ImageBatch {
    return new ImageBatch(parts.flatMap((p) => p.crops), parts[0]!.preprocessing);
  }

  get length(): number {
    return this.crops.length;
  }

  part(indices: readonly number[]): ImageBatch {
    return new ImageBatch(indices.map((i) => this.crops[i]!), this.preprocessing);
  }

  /** Normalised [n, 3, H, W]. */
  pixels(indices: readonly number[]): { data: Float32Array; dims: number[] } {
    const [height, width] = this.preprocessing.size;
    const plane = height * width;
    const data = new Float32Array(indices.length * 3 * plane);
    indices.forEach((index, n) => {
      const bytes = this.crops[index]!;
      for (let c = 0; c < 3; c++) {
        const at = (3 * n + c) * plane;
        for (let i = 0; i < plane; i++) data[at + i] = this.table[256 * c + bytes[3 * i + c]!]!;
      }
    });
    return { data, dims: [indices.length, 3, height, width] };
  }
}
