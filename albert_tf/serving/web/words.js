/** White space, marks, and the words of a text; see characters.py and word_splitting.py. */

// --- characters --------------------------------------------------------------------------------

// White space as Python's str.split has it.
const SPACE = "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACES = new RegExp(`[${SPACE}]+`, "u");
const LAST_SPACES = new RegExp(`[${SPACE}]+$`, "u");
const OUTER_SPACES = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu");
export const CJK =
  /^[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2ceaf}\u{2f800}-\u{2fa1f}]$/u;

/** Splits at white space, without empty words. */
export const wordsOf = (text) => text.split(SPACES).filter(Boolean);

/** Whether a character is white space. */
export const isSpace = (char) => SPACES.test(char);

/** Removes white space at the end, or at both. */
export const stripEnd = (text) => text.replace(LAST_SPACES, "");
export const strip = (text) => text.replace(OUTER_SPACES, "");

/** Keeps what a function of a character returned. */
export function cached(compute) {
  const known = new Map();
  return (char) => {
    let found = known.get(char);
    if (found === undefined) known.set(char, (found = compute(char)));
    return found;
  };
}

/** Whether a character's combining class isn't 0: only then is it sorted among other accents. */
export const isCombining = cached(
  (char) =>
    !("\u0345" + char).normalize("NFD").startsWith("\u0345") || // Class 240.
    (char + "\u0334").normalize("NFD").startsWith("\u0334"), // Class 1.
);
export const isMark = cached((char) => /^\p{M}+$/u.test(char.normalize("NFKD")));

/** Yields the characters of a text with their positions. */
export function* characters(text) {
  let at = 0;
  for (const char of text) {
    yield [char, at];
    at += char.length;
  }
}

// --- words, as a tagger takes them -------------------------------------------------------------

const [LETTER, APART, ALONE, MARK] = [0, 1, 2, 3];
const classOf = cached((char) => {
  if (isSpace(char)) return APART;
  if (CJK.test(char)) return ALONE;
  if (!/[\p{P}\p{S}]/u.test(char)) return LETTER;
  // Marks that may stand within a word: ASCII's, an apostrophe, hyphens, a range's dash, a dot.
  return /[\0-\x7f\u2019\u2010\u2011\u2013\u00b7]/.test(char) ? MARK : ALONE;
});

/** Splits a raw text into words: the start and the end of each. See word_splitting.py. */
export function splitWords(text) {
  const words = [];
  let stretch = []; // Letters and marks: the start, the end and the type of each.
  const endStretch = () => {
    if (stretch.length) words.push(...wordsOfStretch(text, stretch));
    stretch = [];
  };
  for (const [char, start] of characters(text)) {
    const [type, end] = [classOf(char), start + char.length];
    if (type === LETTER || type === MARK) {
      stretch.push({ start, end, type });
      continue;
    }
    endStretch();
    if (type === ALONE) words.push([start, end]);
  }
  endStretch();
  return words;
}

function wordsOfStretch(text, stretch) {
  const isLetter = (char) => char.type === LETTER;
  // A stretch of marks alone is words of one mark each.
  const first = stretch.some(isLetter) ? stretch.findIndex(isLetter) : stretch.length - 1;
  const last = stretch.some(isLetter) ? stretch.findLastIndex(isLetter) : stretch.length - 1;
  const cuts = stretch.flatMap(({ start }, i) => (i <= first || i > last ? [start] : []));
  cuts.push(stretch.at(-1).end);
  const [before, letter] = [stretch[last - 1], stretch[last]];
  const isS = last - 1 > first && /['\u2019]/.test(text[before.start]);
  if (isS && /[sS]/.test(text[letter.start])) cuts.push(before.start);
  cuts.sort((a, b) => a - b);
  return cuts.slice(1).map((end, i) => [cuts[i], end]);
}

