/**
 * Answers texts with the model in this directory: what albert_tf.answers does.
 *
 * In a page of your own:
 *
 *     import { Model } from "./model.js";
 *     const model = await Model.load("model/");
 *     const { label, probabilities } = await model.answer(["A warm film"]);
 *
 * Answers are as of `albert-predict --json`, but that positions count UTF-16 units.
 */

import { createTokenizer } from "./tokenizer.js";
import { isSpace, splitWords, strip } from "./words.js";

// Sequences are padded to a multiple of this.
const LENGTH_MULTIPLE = 8;
// Positions that are read at once, and where each has a number for every piece.
const [POSITIONS_AT_ONCE, POSITIONS_WITH_PIECES] = [4096, 512];
const MASK = "[MASK]";
const SPACE_MARK = "\u2581";
const LEAST_OF_LABELS = 0.5;
// The score of a start, or an end, that no window has.
const NO_ANSWER = -1e6;

/** @typedef {{ids: number[], segments: number[]}} Row */

/** A model; `page` is the content of page.json. */
export class Model {
  /** Loads the files of a directory, and onnxruntime-web from where its page.json says. */
  static async load(directory) {
    const base = new URL(directory, globalThis.location.href);
    const read = async (name) => {
      const response = await fetch(new URL(name, base));
      if (!response.ok) throw new Error(`${response.url}: ${response.status} ${response.statusText}`);
      return response.arrayBuffer();
    };
    const page = JSON.parse(new TextDecoder().decode(await read("page.json")));
    const runtime = new URL(page.runtime, base).href;
    const [ort, ...files] = await Promise.all([
      import(`${runtime}ort.wasm.bundle.min.mjs`),
      read(page.model),
      read(page.vocabulary),
    ]);
    ort.env.wasm.numThreads = 1; // More need headers that many hosts don't send.
    return Model.create(page, ort, ...files);
  }

  /** Makes a model of page.json, a build of onnxruntime, and the two files. */
  static async create(page, ort, file, vocabulary) {
    const session = await ort.InferenceSession.create(new Uint8Array(file));
    return new Model(page, ort, session, createTokenizer(vocabulary, page.tokenizer));
  }

  constructor(page, ort, session, tokenizer) {
    const { task, labels = [], ...options } = page.kind;
    Object.assign(this, { page, ort, session, tokenizer, task, options, labels });
    this.longest = options.max_seq_length;
  }

  /** Answers the texts that the task takes together. */
  answer(texts) {
    const answers = { classify: this.#classify, tag: this.#tag, fill_mask: this.#fill };
    return ({ ...answers, embed: this.#embed }[this.task] ?? this.#find).apply(this, texts);
  }

  // --- classes ---------------------------------------------------------------------------------

  async #classify(text, second) {
    const { windows, doc_stride: stride, multilabel, threshold } = this.options;
    let rows = [this.#pair(text, second)];
    if (windows) {
      const ids = this.tokenizer.encode(text);
      const spans = windowSpans(ids.length, this.longest - 2, stride);
      rows = spans.map(([begin, end]) => this.#join(ids.slice(begin, end)));
    }
    const logits = (await this.#run(rows)).map((outputs) => [...outputs.logits]);
    const combine = (values) =>
      windows === "max" ? Math.max(...values) : sum(values) / values.length;
    if (!this.labels.length) return { score: combine(logits.map(([score]) => score)) };

    const each = logits.map(multilabel ? (row) => row.map(sigmoid) : softmax);
    const shares = this.labels.map((_, i) => combine(each.map((row) => row[i])));
    let chosen = [shares.indexOf(Math.max(...shares))];
    if (multilabel) {
      chosen = [...shares.keys()].filter((i) => shares[i] >= (threshold ?? LEAST_OF_LABELS));
    } else if (threshold !== undefined) {
      chosen = [Number(shares[1] >= threshold)];
    }
    const labels = chosen.map((i) => this.labels[i]);
    const probabilities = Object.fromEntries(this.labels.map((label, i) => [label, shares[i]]));
    const limit = threshold === undefined ? {} : { threshold };
    return { label: labels.join("|"), labels, probabilities, ...limit };
  }

  // --- entities, or a tag for each word --------------------------------------------------------

  async #tag(text) {
    const room = this.longest - 2;
    const sequences = [[]];
    const words = splitWords(text).map(([start, end]) => {
      const ids = this.tokenizer.encode(text.slice(start, end)).slice(0, room);
      if (sequences.at(-1).length + ids.length > room) sequences.push([]);
      const position = 1 + sequences.at(-1).length;
      sequences.at(-1).push(...ids);
      return { start, end, row: sequences.length - 1, position: ids.length ? position : null };
    });
    const outputs = await this.#run(sequences.map((ids) => this.#join(ids)));
    const count = this.labels.length;
    const areEntities = this.labels.some((tag) => tag !== "O") && this.labels.every(isEntityTag);
    const spans = [];
    let before = { prefix: "", type: "" };
    for (const { start, end, row, position } of words) {
      // Words without pieces get O, or the first tag, for sure.
      let [best, share] = [Math.max(this.labels.indexOf("O"), 0), 1];
      if (position !== null) {
        const shares = softmax(outputs[row].logits.subarray(position * count, (position + 1) * count));
        share = Math.max(...shares);
        best = shares.indexOf(share);
      }
      const tag = areEntities ? tagParts(this.labels[best]) : { prefix: "", type: this.labels[best] };
      const goesOn = /[IE]/.test(tag.prefix) && /[BI]/.test(before.prefix) && before.type === tag.type;
      if (goesOn) {
        spans.at(-1).end = end;
        spans.at(-1).shares.push(share);
      } else if (tag.prefix !== "O") {
        spans.push({ type: tag.type, start, end, shares: [share] });
      }
      before = tag;
    }
    const found = spans.map(({ type, start, end, shares }) => {
      const kind = areEntities ? { type } : { tag: type };
      const probability = sum(shares) / shares.length;
      return { text: text.slice(start, end), ...kind, start, end, probability };
    });
    return areEntities ? { entities: found } : { words: found };
  }

  // --- masked words ----------------------------------------------------------------------------

  async #fill(text) {
    const { tokenizer } = this;
    const parts = tokenizer.isFolder ? [text] : text.split(MASK);
    const ids = parts.flatMap((part, i) => {
      const found = tokenizer.encode(part);
      if (i === 0) return found;
      // Text after a mask without a space continues its word.
      if (found.length && !isSpace(part[0])) {
        const piece = tokenizer.pieces[found[0]];
        const bare = piece.startsWith(SPACE_MARK) ? piece.slice(1) : piece;
        if (!bare) found.shift();
        else if (tokenizer.ids.has(bare)) found[0] = tokenizer.ids.get(bare);
      }
      return [tokenizer.maskId, ...found];
    });
    const row = this.#join(ids.slice(0, this.longest - 2));
    const [{ masked_lm_logits: logits }] = await this.#run([row]);
    const size = tokenizer.pieces.length;
    const positions = [...row.ids.keys()].filter((i) => row.ids[i] === tokenizer.maskId);
    const masks = positions.map((position) => {
      const shares = softmax(logits.subarray(position * size, (position + 1) * size));
      const best = largest(shares, this.options.top_k);
      return best.map((id) => ({ piece: tokenizer.pieces[id], probability: shares[id] }));
    });
    return { masks };
  }

  // --- a vector, and how alike that of another text is ------------------------------------------

  async #embed(text, other = "") {
    const { default_prompt: name, similarity } = this.options;
    const prompt = name ? this.options[`${name}_prompt`] : "";
    const texts = other.trim() ? [text, other] : [text];
    const [first, second] = await Promise.all(texts.map((each) => this.#vector(prompt + each)));
    const embedding = Array.from(first);
    return second ? { embedding, similarity: SIMILARITIES[similarity](first, second) } : { embedding };
  }

  /** Alone, since 8 bits depend on the other texts of a batch. */
  async #vector(text) {
    const row = this.#join(this.tokenizer.encode(text).slice(0, this.longest - 2));
    return (await this.#run([row]))[0].embedding;
  }

  // --- answers to questions --------------------------------------------------------------------

  async #find(question, context) {
    const { max_query_length, doc_stride, n_best_size, max_answer_length } = this.options;
    const query = this.tokenizer.encode(question).slice(0, max_query_length);
    const pieces = this.tokenizer.encodeWithOffsets(context);
    const room = this.longest - 3 - query.length;
    const spans = pieces.length ? windowSpans(pieces.length, room, doc_stride) : [];
    const best = bestSpans(spans, pieces.length);
    const rows = spans.map(([begin, end]) => {
      return this.#join(query, pieces.slice(begin, end).map(({ id }) => id));
    });
    const offset = query.length + 2;
    let [found, nullScore] = [[], Infinity];
    let hasBeam = false;
    (await this.#run(rows)).forEach((outputs, number) => {
      hasBeam = "cls_logits" in outputs;
      const [begin, end] = spans[number];
      nullScore = Math.min(nullScore, nullScoreOf(outputs));
      for (const [start, startScore, last, endScore] of candidates(outputs, n_best_size)) {
        const [from, to] = [begin + start - offset, begin + last - offset];
        const isSpan = from >= begin && to >= from && to < Math.min(end, from + max_answer_length);
        if (!isSpan || best[from] !== number) continue;
        // The first piece begins with the text, and a space that only it has ends with a character.
        const place = [from && pieces[from].start, pieces[to].end || [...context][0].length];
        const text = strip(context.slice(...place));
        found.push({ text, start: place[0], end: place[1], score: startScore + endScore });
      }
      found.sort((a, b) => b.score - a.score);
      const texts = new Set();
      const isNew = ({ text }) => !texts.has(text) && texts.add(text);
      found = found.filter(isNew).slice(0, n_best_size);
    });
    const shares = found.length ? softmax(found.map(({ score }) => score)) : [];
    const answers = found.map(({ score, ...each }, i) => ({ ...each, probability: shares[i] }));
    const { null_threshold: threshold } = this.options;
    const odds = nullScore - (hasBeam ? 0 : (found[0]?.score ?? 2 * NO_ANSWER));
    const nullOdds = threshold === undefined ? {} : { null_odds: Math.min(odds, -NO_ANSWER) };
    const answer = threshold === undefined || odds < threshold ? (answers[0]?.text ?? "") : "";
    return { answer, answers: answers.filter(({ text }) => text), ...nullOdds };
  }

  // --- sequences -------------------------------------------------------------------------------

  /** @returns {Row} */
  #join(first, second) {
    const { clsId, sepId } = this.tokenizer;
    const [a, b] = [[clsId, ...first, sepId], second ? [...second, sepId] : []];
    const ofSecond = this.tokenizer.oneSegment ? 0 : 1;
    return { ids: [...a, ...b], segments: [...a.map(() => 0), ...b.map(() => ofSecond)] };
  }

  /** A text, or a pair, of which the longer text is cut. @returns {Row} */
  #pair(text, second = "") {
    const [a, b] = [text, second].map((each) => this.tokenizer.encode(each));
    if (!b.length) return this.#join(a.slice(0, this.longest - 2));
    const room = this.longest - 3;
    const lengthA = Math.min(a.length, this.longest);
    const lengthB = Math.min(b.length, Math.max(room - lengthA, Math.floor(room / 2)));
    return this.#join(a.slice(0, room - lengthB), b.slice(0, lengthB));
  }

  /** Returns the model's outputs for each row, flat, by name. @param {Row[]} rows */
  async #run(rows) {
    if (!rows.length) return [];
    const longest = Math.max(...rows.map(({ ids }) => ids.length));
    const width = Math.min(Math.ceil(longest / LENGTH_MULTIPLE) * LENGTH_MULTIPLE, this.longest);
    const positions = this.task === "fill_mask" ? POSITIONS_WITH_PIECES : POSITIONS_AT_ONCE;
    const size = Math.max(Math.floor(positions / width), 1);
    const found = [];
    for (let first = 0; first < rows.length; first += size) {
      const part = rows.slice(first, first + size);
      const tensor = (values) => {
        const data = Int32Array.from({ length: part.length * width }, (_, i) => {
          return values(part[Math.floor(i / width)])[i % width] ?? 0;
        });
        return new this.ort.Tensor("int32", data, [part.length, width]);
      };
      const outputs = await this.session.run({
        input_ids: tensor(({ ids }) => ids),
        input_mask: tensor(({ ids }) => ids.map(() => 1)),
        segment_ids: tensor(({ segments }) => segments),
      });
      for (const row of part.keys()) {
        const flat = Object.entries(outputs).map(([name, { data, dims }]) => {
          const count = data.length / dims[0];
          return [name, data.subarray(row * count, (row + 1) * count)];
        });
        found.push(Object.fromEntries(flat));
      }
    }
    return found;
  }
}

const dot = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);
const SIMILARITIES = {
  cosine: (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b)),
  dot,
  euclidean: (a, b) => -Math.hypot(...a.map((value, i) => value - b[i])),
  manhattan: (a, b) => -sum(a.map((value, i) => Math.abs(value - b[i]))),
};

const sum = (values) => values.reduce((a, b) => a + b, 0);
const sigmoid = (value) => 1 / (1 + Math.exp(-value));

function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b));
  const shares = Array.from(logits, (value) => Math.exp(value - most));
  const total = sum(shares);
  return shares.map((share) => share / total);
}

/** Returns the indices of the largest values; of equal ones, the first come first. */
function largest(values, count) {
  return [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);
}

const isEntityTag = (tag) => tag === "O" || /^[BIES]-./s.test(tag);
const tagParts = (tag) => ({ prefix: tag[0], type: tag.slice(2) });

/** Returns the first piece and the end of each window on a text. */
function windowSpans(length, room, stride) {
  const starts = [0];
  while (starts.at(-1) + room < length) starts.push(starts.at(-1) + Math.min(room, stride));
  return starts.map((start) => [start, Math.min(start + room, length)]);
}

/** Returns for each piece the window with most context on its shorter side. */
function bestSpans(spans, length) {
  const [best, scores] = [Array(length).fill(0), Array(length).fill(-1)];
  spans.forEach(([start, end], number) => {
    for (let i = start; i < end; i++) {
      const score = Math.min(i - start, end - 1 - i) + 0.01 * (end - start);
      if (score > scores[i]) [scores[i], best[i]] = [score, number];
    }
  });
  return best;
}

/** Yields starts and ends of answers with their scores, from either kind of head. */
function* candidates(outputs, count) {
  if ("cls_logits" in outputs) {
    const starts = outputs.start_top_log_probs;
    const ends = outputs.end_top_log_probs.length / starts.length;
    for (let i = 0; i < starts.length * ends; i++) {
      const start = Math.floor(i / ends);
      const places = [outputs.start_top_index[start], outputs.end_top_index[i]].map(Number);
      yield [places[0], starts[start], places[1], outputs.end_top_log_probs[i]];
    }
    return;
  }
  const { start_logits: starts, end_logits: ends } = outputs;
  for (const start of largest(starts, count)) {
    for (const end of largest(ends, count)) yield [start, starts[start], end, ends[end]];
  }
}

/** The score of "no answer", of either kind of head. */
function nullScoreOf(outputs) {
  return outputs.cls_logits?.[0] ?? outputs.start_logits[0] + outputs.end_logits[0];
}
