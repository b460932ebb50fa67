// SPDX-License-Identifier: Apache-2.0
//
// large.mjs - ids of large texts by the reference tokenizer: Hugging Face's own binding, npm package "tokenizers", in node_modules
// below the current folder.  test_large.c makes the same texts and compares.
//   node large.mjs GOLDEN > GOLDEN/tokenizer/large.json      GOLDEN: an unpacked tests/data/golden
import { createRequire } from 'module';
import { readFileSync } from 'fs';
import { crc32 } from 'zlib';
const { Tokenizer } = createRequire(process.cwd() + '/')('tokenizers');
const golden = process.argv[2], MIB = 1 << 20, BLOCK = 8192;
const pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" +
  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const json = readFileSync(golden + '/tokenizer-qwen3/tokenizer.json', 'utf8');
const other = JSON.parse(json);
other.pre_tokenizer.pretokenizers[0].pattern.Regex = pattern;
const qwen3 = Tokenizer.fromString(json), qwen35 = Tokenizer.fromString(JSON.stringify(other));
const lines = readFileSync(golden + '/tokenizer/encode.jsonl', 'utf8').split('\n').filter(Boolean).map(l => JSON.parse(l).text);

const M = (1n << 64n) - 1n;
function random(seed) {                       // splitmix64
  let s = BigInt(seed);
  return n => {
    s = (s + 0x9e3779b97f4a7c15n) & M;
    let z = s;
    z = ((z ^ z >> 30n) * 0xbf58476d1ce4e5b9n) & M;
    z = ((z ^ z >> 27n) * 0x94d049bb133111ebn) & M;
    return Number((z ^ z >> 31n) % BigInt(n));
  };
}
function until(bytes, next) {
  const parts = [];
  for (let n = 0; n < bytes;) { const p = next(); parts.push(p); n += Buffer.byteLength(p); }
  return parts.join('');
}
const RANGES = [[0x20, 0x7e], [0x9, 0xd], [0xa0, 0x17f], [0x300, 0x36f], [0x5d0, 0x5ea], [0x620, 0x64a], [0x64b, 0x652], [0xe01, 0xe3a],
  [0x1100, 0x11ff], [0x2000, 0x206f], [0x3041, 0x3096], [0x4e00, 0x4eff], [0xac00, 0xacff], [0x1f300, 0x1f64f], [0x30, 0x39],
  [0x61, 0x7a], [0x20, 0x20]];
const r1 = random(1), r2 = random(2), r3 = random(3), r4 = random(4);
const B64 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
const texts = {
  'a': 'a'.repeat(MIB), 'blanks': ' '.repeat(MIB), 'blanks, then x': ' '.repeat(MIB - 1) + 'x', 'newlines': '\n'.repeat(MIB),
  '<': '<'.repeat(MIB), 'e acute': '\u00e9'.repeat(MIB / 2),
  'letters': until(MIB, () => String.fromCharCode(97 + r1(26))),
  'base64': until(MIB, () => B64[r2(64)]),
  'characters': until(MIB, () => { const [a, b] = RANGES[r3(RANGES.length)]; return String.fromCodePoint(a + r3(b - a + 1)); }),
  'corpus': until(MIB, () => lines[r4(lines.length)]),
};
function sums(ids) {
  const b = Buffer.alloc(ids.length * 4);
  ids.forEach((id, i) => b.writeInt32LE(id, i * 4));
  const blocks = [];
  for (let i = 0; i < ids.length; i += BLOCK) blocks.push(crc32(b.subarray(i * 4, (i + BLOCK) * 4)));
  return { n: ids.length, crc: blocks };
}
const out = [];
for (const [name, text] of Object.entries(texts)) {
  const bytes = Buffer.from(text), item = { name, bytes: bytes.length, crc: crc32(bytes) };
  for (const [key, t] of [['qwen3', qwen3], ['qwen3_5', qwen35]]) {
    const begin = Date.now();
    item[key] = sums((await t.encode(text, null, { addSpecialTokens: false })).getIds());
    console.error(name, key, item[key].n, Date.now() - begin, 'ms');
  }
  out.push(item);
}
console.log('[' + out.map(i => JSON.stringify(i)).join(',\n') + ']');
