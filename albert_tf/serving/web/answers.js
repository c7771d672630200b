/** Draws answers, which have the form of model.js's. */

export const MASK = "[MASK]";
const MOST_BARS = 12;
const MOST_CANDIDATES = 5;

/** Makes an element of a tag, attributes, and children: elements or text. */
export function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Returns the elements that show an answer to texts. */
export function show(found, texts) {
  const kind = Object.keys(KINDS).find((name) => name in found);
  return KINDS[kind](found, texts);
}

// What only one kind of answer has -> how that is shown.
const KINDS = {
  score: ({ score }) => [element("p", { class: "number" }, score.toFixed(4))],
  choice: ({ choice, probabilities }, [, ...endings]) => {
    return [bars(endings.map((text, i) => [text, probabilities[i], i === choice]))];
  },
  labels: ({ labels, probabilities, threshold }) => {
    const rows = Object.entries(probabilities).map((each) => [...each, labels.includes(each[0])]);
    return [bars(rows, threshold), ...none(labels, "label")];
  },
  entities: ({ entities }, [text]) => {
    const rows = entities.map((each) => [`${each.text} · ${each.type}`, each.probability]);
    return [marked(text, entities), ...none(entities, "entity"), bars(rows)];
  },
  words: ({ words }, [text]) => [marked(text, words)],
  masks: showMasks,
  embedding: ({ embedding, similarity }) => {
    const shown = similarity ?? `${embedding.slice(0, MOST_BARS).map((x) => x.toFixed(3)).join(" ")} …`;
    const what = similarity === undefined ? `A vector of ${embedding.length} numbers` : "Similarity";
    return [
      element("h2", {}, what),
      element("p", { class: "number" }, typeof shown === "number" ? shown.toFixed(4) : shown),
    ];
  },
  answer: ({ answer, answers }, [, context]) => {
    const place = answers.find(({ text }) => text === answer);
    const best = answers.slice(0, MOST_CANDIDATES);
    return [
      marked(context, answer && "start" in place ? [place] : []),
      ...none(answer, "answer in this text"),
      element("h2", {}, "Candidates"),
      bars(best.map(({ text, probability }) => [text, probability, text === answer])),
    ];
  },
};

function showMasks({ masks, similarity }, [text]) {
  const hasSpaces = masks.flat().some(({ piece }) => piece.startsWith("\u2581"));
  const filled = masks.map((best) => {
    return best.map(({ piece, probability }) => ({ text: word(piece, hasSpaces), probability }));
  });
  const places = [...text.matchAll(/\[MASK\]/g)].slice(0, masks.length);
  const spans = places.map(({ index: start }, i) => {
    return { ...filled[i][0], start, end: start + MASK.length };
  });
  const shown = filled.flatMap((best, i) => [
    element("h2", {}, masks.length > 1 ? `${MASK} ${i + 1}` : MASK),
    bars(best.slice(0, MOST_CANDIDATES).map((each, k) => [each.text, each.probability, k === 0])),
  ]);
  if (similarity !== undefined) {
    const row = ["similarity (cosine)", similarity, true, similarity.toFixed(3)];
    shown.push(element("h2", {}, "The two texts"), bars([row]));
  }
  const nothing = none(masks, `${MASK} in the part that the model reads`);
  return [marked(text, spans), ...nothing, ...shown];
}

const none = (found, what) => (found.length ? [] : [element("p", {}, `There is no ${what}.`)]);

/** A piece as people read it: one that continues a word has a dash, where others have a space. */
function word(piece, hasSpaces) {
  if (piece.startsWith("\u2581")) return piece.slice(1) || "(space)";
  return hasSpaces || piece.startsWith("##") ? `-${piece.replace(/^##/, "")}` : piece;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/**
 * Returns a list of bars.
 *
 * @param rows Of each its name, its share, and whether it is chosen; what is written for its share.
 * @param threshold Where there is a line across them; -1: nowhere.
 */
function bars(rows, threshold = -1) {
  const best = [...rows].sort((a, b) => b[1] - a[1]).slice(0, MOST_BARS);
  const items = rows.filter((each) => best.includes(each));
  const shown = items.map(([name, share, isChosen, said = percent(share)]) => {
    const bar = element("span", { class: "bar" });
    // Not by an attribute, which a server's policy forbids.
    bar.style.setProperty("--share", share);
    bar.style.setProperty("--limit", threshold);
    const label = element("span", { class: "name" }, name);
    const number = element("span", { class: "share" }, said);
    return element("li", isChosen ? { class: "chosen" } : {}, label, number, bar);
  });
  return element("ol", { class: "bars" }, ...shown);
}

/** Returns a text in which spans, in their order, are marked with their types. */
function marked(text, spans) {
  const parts = [];
  let at = 0;
  for (const { text: shown, start, end, type, tag, probability } of spans) {
    const kind = type ?? tag;
    const label = kind ? [" ", element("small", {}, kind)] : [];
    const mark = element("mark", { title: percent(probability) }, shown, ...label);
    if (kind) mark.style.setProperty("--hue", hueOf(kind));
    parts.push(text.slice(at, start), mark);
    at = end;
  }
  return element("p", { class: "text" }, ...parts, text.slice(at));
}

/** Each type has a colour of its own, always the same. */
const hueOf = (kind) => [...kind].reduce((hue, char) => (hue * 31 + char.codePointAt(0)) % 359, 7);
