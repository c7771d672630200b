/**
 * Texts -> the ids that a model reads, as albert_tf.Tokenizer gives them, and words for taggers.
 *
 * Positions are those of JavaScript's strings, in UTF-16 units. Characters newer than the Unicode
 * of the training's Python are normalised as this browser knows them.
 */

/** @typedef {{id: number, text: string, begin: number, end: number}} Piece */

import { cached, characters, CJK, isCombining, isMark, isSpace, stripEnd, wordsOf } from "./words.js";

const utf8 = new TextEncoder();
const fromUtf8 = new TextDecoder();

// --- SentencePiece -----------------------------------------------------------------------------

const [NORMAL, UNKNOWN, USER_DEFINED, BYTE] = [1, 2, 4, 6];
// A digit, as Python's str.isdigit has it, and a comma.
const DIGIT_COMMA =
  /[\p{Nd}\xb2\xb3\xb9\u1369-\u1371\u19da\u2070\u2074-\u2079\u2080-\u2089\u2460-\u2468\u2474-\u247c\u2488-\u2490\u24ea\u24f5-\u24fd\u24ff\u2776-\u277e\u2780-\u2788\u278a-\u2792\u{10a40}-\u{10a43}\u{10e60}-\u{10e68}\u{11052}-\u{1105a}\u{1f100}-\u{1f10a}],$/u;
const SPACE_MARK = "\u2581";
const FLOAT_MIN = 2 ** -126;
// Names of the tables of characters that text/folder_ids.py makes, and what ends texts of the first.
const RULES = ["transformers 4", "transformers 5", "transformers 5 with segments"];
const END = "\uffff";

/** Yields the numbers and values of the fields of a protocol buffer. */
function* fields(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const varint = () => {
    let [value, scale, byte] = [0, 1, 0];
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    return value;
  };
  while (at < bytes.length) {
    const key = varint();
    const type = key & 7;
    let value = type === 0 || type === 2 ? varint() : 0;
    const size = type === 1 ? 8 : type === 5 ? 4 : type === 2 ? value : 0;
    if (type === 2) value = bytes.subarray(at, at + size);
    if (type === 5) value = view.getFloat32(at, true);
    at += size;
    yield [key >>> 3, value];
  }
}

/** What all tokenizers share: pieces by id, the special ones, added tokens, and offsets. */
class Tokenizer {
  constructor(pieces, special, { added }) {
    /** The pieces, by id. */
    this.pieces = pieces;
    /** @type {Map<string, number>} */
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    const ids = special.map((names) => this.ids.get(names.find((name) => this.ids.has(name))));
    [this.padId, this.unkId, this.clsId, this.sepId, this.maskId] = ids;
    /** A pattern of the added tokens, if there are any. */
    this.added = added && new RegExp(`(${added})`);
  }

  /** Returns the ids of a raw text, without special ones. */
  encode(text) {
    const own = (part) => this.split(this.normalize(part)).map(({ id }) => id);
    return this.#parts(text).flatMap((part, i) => (i % 2 ? this.ids.get(part.trim()) : own(part)));
  }

  /** Returns the id of each piece, and the start and the end in the raw text of what it stands for. */
  encodeWithOffsets(text) {
    let begin = 0;
    return this.#parts(text).flatMap((part, i) => {
      const whole = { id: this.ids.get(part.trim()), start: 0, end: part.length };
      const move = ({ id, start, end }) => ({ id, start: begin + start, end: begin + end });
      const found = (i % 2 ? [whole] : this.#partWithOffsets(part)).map(move);
      begin += part.length;
      return found;
    });
  }

  /** Splits a raw text at added tokens; every second part is such a token. */
  #parts(text) {
    return this.added ? text.split(this.added) : [text];
  }

  #partWithOffsets(text) {
    const origins = this.origins(text);
    // A character ends where the next one begins that is not a dropped mark.
    const kept = new Set(origins);
    const ends = new Map();
    let limit = text.length;
    for (const [char, at] of [...characters(text)].reverse()) {
      ends.set(at, limit);
      if (kept.has(at) || !isMark(char)) limit = at;
    }
    return this.split(this.normalize(text)).map(({ id, begin, end }) => {
      const start = origins[Math.min(begin, origins.length - 1)];
      return { id, start, end: end > begin ? ends.get(origins[end - 1]) : start };
    });
  }
}

/** A SentencePiece model of the type Unigram, with the release's rules; see sentence_piece.py. */
class SentencePiece extends Tokenizer {
  constructor(bytes, { lower, keepAccents, added }) {
    const pieces = [];
    const sections = { 2: [], 3: [] }; // The trainer's fields, and the normalizer's.
    for (const [number, value] of fields(bytes)) {
      if (number === 1) {
        const { 1: text = utf8.encode(""), 2: score = 0, 3: type = NORMAL } = Object.fromEntries(fields(value));
        pieces.push({ text: fromUtf8.decode(text), score, type });
      } else if (number in sections) {
        sections[number].push(...fields(value));
      }
    }
    const texts = pieces.map(({ text }) => text);
    super(texts, [["<pad>", "[PAD]"], ["<unk>", "[UNK]"], ["[CLS]"], ["[SEP]"], ["[MASK]"]], { added });
    this.lower = lower;
    this.keepAccents = keepAccents;

    const normalizer = Object.fromEntries(sections[3]);
    const { 1: name = utf8.encode(""), 2: map, 3: prefix = 1, 4: trim = 1, 5: marks = 1 } = normalizer;
    const rules = RULES.indexOf(fromUtf8.decode(name));
    this.isFolder = rules >= 0;
    this.oneSegment = rules === 1;
    this.end = rules === 0 ? END : "";
    this.rules = { prefix, trim, mark: marks ? SPACE_MARK : " " };
    this.map = map?.length ? new CharacterMap(map) : null;

    const scores = pieces.filter(({ type }) => type === NORMAL).map(({ score }) => score);
    const lowest = scores.reduce((a, b) => Math.min(a, b), Infinity);
    const highest = scores.reduce((a, b) => Math.max(a, b), FLOAT_MIN);
    this.unknown = { id: pieces.findIndex(({ type }) => type === UNKNOWN), score: Math.fround(lowest - 10) };
    this.known = new Map(); // The pieces that a text may have, and their ids and scores.
    this.longest = 0;
    pieces.forEach(({ text, score, type }, id) => {
      if (type !== NORMAL && type !== USER_DEFINED) return;
      const bonus = Math.fround(utf8.encode(text).length * highest) - 0.1;
      this.known.set(text, { id, score: type === USER_DEFINED ? bonus : score });
      this.longest = Math.max(this.longest, text.length);
    });
    this.fixed = texts.filter((_, id) => pieces[id].type === USER_DEFINED);
    this.fixed.sort((a, b) => b.length - a.length);
    // Spell characters that are unknown: <0x00> to <0xFF>.
    const { 35: byteFallback = 0 } = Object.fromEntries(sections[2]);
    this.bytes = byteFallback ? texts.filter((_, id) => pieces[id].type === BYTE) : null;
  }

  normalize(text) {
    if (this.isFolder) return text;
    const found = this.#plain(wordsOf(text).join(" "));
    return this.lower ? found.toLowerCase() : found;
  }

  #plain(text) {
    if (this.keepAccents || /^[\0-\x7f]*$/.test(text)) return text;
    return text.normalize("NFKD").replace(/[^\0-\u02ff]/gu, (char) => (isCombining(char) ? "" : char));
  }

  /** Returns for each unit of the normalised text the position of its origin in the raw one. */
  origins(text) {
    if (this.isFolder) return [...characters(text)].flatMap(([char, at]) => Array(char.length).fill(at));
    const found = [];
    const end = stripEnd(text).length;
    let wasApart = true;
    for (const [char, at] of characters(text)) {
      const isApart = isSpace(char);
      if (at < end && !(isApart && wasApart)) {
        const size = isApart ? 1 : this.normalize(char).length;
        for (let i = 0; i < size; i++) found.push(at);
      }
      wasApart = isApart;
    }
    return found;
  }

  /** Splits a normalised text into pieces. @returns {Piece[]} */
  split(text) {
    if (this.isFolder) return this.#ownSplit(text);
    return this.#pieces(text).flatMap((piece) => {
      if (piece.text.length < 2 || !DIGIT_COMMA.test(piece.text)) return [piece];
      // A part ends where those after it begin.
      const number = piece.text.slice(0, -1).replaceAll(SPACE_MARK, "");
      const comma = { id: this.ids.get(",") ?? this.unknown.id, text: "," };
      const parts = [...this.#pieces(number), comma];
      const sizes = parts.map((part) => part.text.replaceAll(SPACE_MARK, "").length);
      let [begin, following] = [piece.begin, sizes.reduce((a, b) => a + b)];
      return parts.map((part, i) => {
        following -= sizes[i];
        const end = piece.end - following;
        const found = { ...part, begin, end };
        begin = end;
        return found;
      });
    });
  }

  /** Splits as FolderPiece does. @returns {Piece[]} */
  #ownSplit(text) {
    const found = text ? this.#pieces(text + this.end) : [];
    const widths = ({ text: piece }) => Number(piece !== SPACE_MARK);
    return found
      .slice(0, found.length - this.end.length)
      .map((piece) => ({ ...piece, end: Math.max(piece.end, piece.begin + widths(piece)) }));
  }

  /** Splits as SentencePiece itself does. @returns {Piece[]} */
  #pieces(text) {
    const { text: own, origins } = this.#replaced(text);
    /** @type {Piece[]} */
    const found = [];
    for (const { id, begin, end } of this.#bestSplit(own)) {
      const piece = { id, text: own.slice(begin, end), begin: origins[begin], end: origins[end] };
      const before = found.at(-1);
      if (id !== this.unknown.id) {
        found.push(piece);
      } else if (this.bytes) {
        for (const byte of utf8.encode(piece.text)) {
          const name = `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
          found.push({ ...piece, id: this.ids.get(name), text: name, end: piece.begin });
        }
        found.at(-1).end = piece.end;
      } else if (before?.id === id) {
        before.text += piece.text;
        before.end = piece.end;
      } else {
        found.push(piece);
      }
    }
    return found;
  }

  /** Applies the model's own normalisation. The origins end with that of the text's end. */
  #replaced(text) {
    const { prefix, trim, mark } = this.rules;
    let [found, origins, at, wasSpace] = ["", [], 0, Boolean(trim)];
    const add = (part) => {
      found += part;
      for (let i = 0; i < part.length; i++) origins.push(at);
    };
    const next = () => {
      const fixed = this.fixed.find((piece) => text.startsWith(piece, at));
      if (fixed) return [fixed, at + fixed.length];
      const char = String.fromCodePoint(text.codePointAt(at));
      return this.map?.longest(text, at) ?? [char, at + char.length];
    };
    while (trim && at < text.length && next()[0] === " ") [, at] = next();
    if (at === text.length) return { text: "", origins: [at] };
    if (prefix) add(mark);
    while (at < text.length) {
      let [part, end] = next();
      if (wasSpace) part = part.replace(/^ +/, "");
      add(part.replaceAll(" ", mark));
      if (part) wasSpace = Boolean(trim) && part.endsWith(" ");
      at = end;
    }
    while (trim && found.endsWith(mark)) {
      found = found.slice(0, -1);
      at = origins.pop();
    }
    return { text: found, origins: [...origins, at] };
  }

  /** Returns the split with the highest sum of scores, in SentencePiece's precision. */
  #bestSplit(text) {
    const scores = new Float32Array(text.length + 1);
    const begins = new Int32Array(text.length + 1).fill(-1);
    const ids = new Int32Array(text.length + 1);
    const offer = (begin, end, id, score) => {
      if (begins[end] >= 0 && !(score > scores[end])) return; // Of equal ones the first stays.
      scores[end] = score;
      begins[end] = begin;
      ids[end] = id;
    };
    for (let begin = 0, width = 1; begin < text.length; begin += width) {
      width = text.codePointAt(begin) > 0xffff ? 2 : 1;
      const last = Math.min(begin + this.longest, text.length);
      let isKnown = false;
      for (let end = begin + 1; end <= last; end++) {
        const piece = this.known.get(text.slice(begin, end));
        if (!piece) continue;
        offer(begin, end, piece.id, piece.score + scores[begin]);
        isKnown ||= end === begin + width;
      }
      const unknown = Math.fround(this.unknown.score + scores[begin]);
      if (!isKnown) offer(begin, begin + width, this.unknown.id, unknown);
    }
    const found = [];
    for (let end = text.length; end > 0; end = begins[end]) {
      found.push({ id: ids[end], begin: begins[end], end });
    }
    return found.reverse();
  }
}

/** A SentencePiece model's table of characters: a trie of UTF-8, as a double array, and strings. */
class CharacterMap {
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const size = view.getUint32(0, true);
    this.units = Uint32Array.from({ length: size / 4 }, (_, i) => view.getUint32(4 + 4 * i, true));
    this.strings = bytes.subarray(4 + size);
    this.utf8 = cached((char) => utf8.encode(char));
  }

  /** Returns what replaces the longest entry at a position, and its end; null if there is none. */
  longest(text, begin) {
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let [place, found, end] = [offset(this.units[0]), -1, begin];
    walk: for (let at = begin; at < text.length; ) {
      const char = String.fromCodePoint(text.codePointAt(at));
      at += char.length;
      let unit = 0;
      for (const byte of this.utf8(char)) {
        unit = this.units[place ^ byte];
        if (((unit & 0x800000ff) >>> 0) !== byte) break walk;
        place ^= byte ^ offset(unit);
      }
      if (unit & 256) [found, end] = [this.units[place] & 0x7fffffff, at];
    }
    if (found < 0) return null;
    return [fromUtf8.decode(this.strings.subarray(found, this.strings.indexOf(0, found))), end];
  }
}

// --- WordPiece ---------------------------------------------------------------------------------

const MAX_WORD_CHARACTERS = 200;
const CONTINUATION = "##";

/** A WordPiece vocabulary with BERT's splitting into words; see word_piece.py. */
class WordPiece extends Tokenizer {
  constructor(bytes, { lower, keepAccents, added }) {
    const lines = fromUtf8.decode(bytes).replace(/\n$/, "").split("\n");
    // The first column of each line; a repeated piece gets no second id.
    const pieces = [...new Set(lines.map((line) => wordsOf(line)[0] ?? " "))];
    super(pieces, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map((name) => [name]), { added });
    this.lower = lower;
    this.strips = lower && !keepAccents;
  }

  normalize(text) {
    const cleaned = text
      .replace(/[\t\n\r\p{Zs}]/gu, " ")
      .replace(/[\ufffd\p{Cc}\p{Cf}]/gu, "")
      .replace(/./gsu, (char) => (CJK.test(char) ? ` ${char} ` : char));
    const cased = this.lower ? cleaned.toLowerCase() : cleaned;
    return this.strips ? cased.normalize("NFD").replace(/\p{Mn}/gu, "") : cased;
  }

  origins(text) {
    const sizes = [...characters(text)].map(([char, at]) => [this.normalize(char).length, at]);
    return sizes.flatMap(([size, at]) => Array(size).fill(at));
  }

  /** Splits a normalised text into pieces. @returns {Piece[]} */
  split(text) {
    const found = [];
    let begin = 0;
    for (const word of wordsOf(text.replace(/[!-/:-@[-`{-~\p{P}]/gu, " $& "))) {
      begin = text.indexOf(word, begin);
      found.push(...this.#splitWord(word, begin));
      begin += word.length;
    }
    return found;
  }

  /** Takes the longest piece from the left, repeatedly; the word is unknown if there is none. */
  #splitWord(word, place) {
    const unknown = { id: this.unkId, text: word, begin: place, end: place + word.length };
    if ([...word].length > MAX_WORD_CHARACTERS) return [unknown];
    const found = [];
    for (let begin = 0, end; begin < word.length; begin = end) {
      const mark = begin ? CONTINUATION : "";
      end = word.length;
      while (end > begin && !this.ids.has(mark + word.slice(begin, end))) end--;
      if (end === begin) return [unknown];
      const text = mark + word.slice(begin, end);
      found.push({ id: this.ids.get(text), text, begin: place + begin, end: place + end });
    }
    return found;
  }
}

/**
 * Makes the tokenizer of a vocabulary.
 *
 * @param {ArrayBuffer} content Of spiece.model, or of vocab.txt.
 * @param {{wordPiece: boolean, lower: boolean, keepAccents: boolean, added: string}} options
 *   Which it is, whether text is lower-cased, whether accents stay, and a pattern of added tokens.
 */
export function createTokenizer(content, options) {
  return new (options.wordPiece ? WordPiece : SentencePiece)(new Uint8Array(content), options);
}
