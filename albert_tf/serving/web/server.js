/** Asks albert-serve, and gives its answers the form of model.js's. */

/** Returns the models at an address like "v1/models", with what is known of each, by their names. */
export async function list(address) {
  return new Map((await read(address)).data.map((each) => [each.id, each]));
}

/** Returns a model as app.js asks it. */
export async function open(address, name) {
  const url = new URL(`${address}/${name}`, location.href).href;
  const { metadata } = await read(`${url}/metadata`);
  const { inputs, outputs } = metadata.signature_def.signature_def.serving_default;
  const own = Object.keys(inputs);
  const vector = ["mean", "embedding"].find((output) => output in outputs);

  function request(texts) {
    const instances = [texts[0]];
    if (own.length > 1) instances[0] = Object.fromEntries(own.map((input, i) => [input, texts[i]]));
    if (vector && texts[1].trim()) instances.push(texts[1]);
    return { url: `${url}:predict`, body: JSON.stringify({ instances }) };
  }

  async function answer(texts) {
    const { url, body } = request(texts);
    const [row, other] = (await read(url, { method: "POST", body })).predictions;
    if (typeof row === "number") return { score: row };
    const kind = Object.keys(FORMS).find((output) => output in row);
    const found = FORMS[kind](row, ...texts);
    return other ? { ...found, similarity: cosine(row[vector], other[vector]) } : found;
  }

  const texts = { inputs: vector ? [...own, "other"] : own, hasMasks: "pieces" in outputs };
  return { name, ...texts, request, answer };
}

async function read(address, options) {
  const response = await fetch(address, options).catch(({ message }) => {
    throw new Error(`The server can't be asked: ${message}`);
  });
  const values = await response.json();
  if (!response.ok) throw new Error(values.error);
  return values;
}

// An output that only one kind of model has -> its answer.
const FORMS = {
  labels: ({ label, labels, probabilities, threshold }) => {
    const chosen = labels.filter((name) => name === label || label.split("|").includes(name));
    const shares = Object.fromEntries(labels.map((name, i) => [name, probabilities[i]]));
    return { label, labels: chosen, probabilities: shares, threshold };
  },
  entities: (row, text) => ({ entities: spans(text, row, "type", row.entities, row.types) }),
  words: (row, text) => ({ words: spans(text, row, "tag", row.words, row.tags) }),
  answer: ({ answer, answers, probabilities, starts }, question, context) => {
    const places = unitsOf(context);
    const found = answers.map((text, i) => {
      // An older export names no places: a text that is there twice has none.
      const start = starts ? places[starts[i]] : context.indexOf(text);
      const isKnown = starts || start === context.lastIndexOf(text);
      const place = isKnown ? { start, end: start + text.length } : {};
      return { text, ...place, probability: probabilities[i] };
    });
    return { answer, answers: found.filter(({ text }) => text) };
  },
  choice: (row) => row,
  embedding: (row) => row,
  pieces: ({ pieces, probabilities }) => {
    const masks = pieces.map((best, i) => {
      return best.map((piece, rank) => ({ piece, probability: probabilities[i][rank] }));
    });
    // Where another text has more masks, these are empty.
    return { masks: masks.filter(([{ piece }]) => piece) };
  },
};

/** Returns where each character is: the server's places count characters, ours UTF-16 units. */
function unitsOf(text) {
  const places = [0];
  for (const char of text) places.push(places.at(-1) + char.length);
  return places;
}

function spans(text, { starts, ends, probabilities }, name, texts, kinds) {
  const places = unitsOf(text);
  return texts.map((each, i) => {
    const [start, end] = [places[starts[i]], places[ends[i]]];
    return { text: each, [name]: kinds[i], start, end, probability: probabilities[i] };
  });
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}
