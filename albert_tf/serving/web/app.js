/** The page: what is typed goes to the worker, and its answers are shown. */

const page = await (await fetch("page.json")).json();
const PAUSE_MS = 150; // Of typing, before an answer is asked for.
const MOST_BARS = 12;
const MASK = "[MASK]";

// --- the form ----------------------------------------------------------------------------------

// A task -> the fields that it reads.
const FIELDS = {
  classify: page.options.pairs ? ["First text", "Second text"] : ["Text"],
  tag: ["Text"],
  fill_mask: [`Text with ${MASK} in place of a word`],
  answer_v1: ["Question", "Text that may hold the answer"],
  answer_v2: ["Question", "Text that may hold the answer"],
};
const form = document.querySelector("#form");
const status = document.querySelector("#status");
const answer = document.querySelector("#answer");

/** Makes an element of a tag, attributes, and children: elements or text. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

document.title = page.title;
document.querySelector("#title").textContent = page.title;
const inputs = FIELDS[page.task].map((name, i) => {
  const field = element(name === "Question" ? "input" : "textarea", { id: `text-${i}` });
  form.append(element("label", { for: field.id }, name), field);
  return field;
});
if (page.task === "fill_mask") {
  const insert = element("button", { type: "button" }, `Insert ${MASK}`);
  insert.addEventListener("click", () => {
    const [field] = inputs;
    field.setRangeText(MASK, field.selectionStart, field.selectionEnd, "end");
    field.focus();
    ask();
  });
  form.append(insert);
}

// --- questions to the worker: only the last one counts -----------------------------------------

const worker = new Worker("worker.js", { type: "module" });
let [asked, isReady, isBusy, waiting, timer] = [0, false, false, null, 0];

function ask() {
  const texts = inputs.map((field) => field.value);
  // A second text may be missing, a question's text not.
  const needed = page.task === "classify" ? texts.slice(0, 1) : texts;
  waiting = { number: ++asked, texts };
  if (needed.every((text) => text.trim())) {
    send();
  } else {
    waiting = null;
    answer.replaceChildren();
    say(isReady ? "Type a text." : "Loading the model…");
  }
}

function send() {
  if (!isReady || isBusy || !waiting) return;
  worker.postMessage(waiting);
  isBusy = { ...waiting, since: performance.now() };
  waiting = null;
}

worker.addEventListener("message", ({ data }) => {
  if (data.ready) {
    isReady = true;
    say("Type a text.");
    ask();
    return;
  }
  const { texts, since } = isBusy;
  isBusy = false;
  if (data.error) {
    say(data.error, true);
  } else if (data.number === asked) {
    answer.replaceChildren(...show(data.answer, texts));
    say(`Answered in ${Math.round(performance.now() - since)} ms.`);
  }
  send();
});

function say(text, isError = false) {
  status.textContent = text;
  status.classList.toggle("error", isError);
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
});
inputs[0].focus();

// --- answers -----------------------------------------------------------------------------------

/** Returns the elements that show an answer to texts. */
function show(found, texts) {
  if ("score" in found) {
    return [element("p", { class: "number" }, found.score.toFixed(4))];
  }
  if (found.probabilities) {
    const rows = page.labels.map((name) => {
      return { name, probability: found.probabilities[name], isChosen: found.labels.includes(name) };
    });
    return [bars(rows)];
  }
  if (found.entities) return [marked(texts[0], found.entities), ...none(found.entities, "entities")];
  if (found.words) return [marked(texts[0], found.words)];
  if (found.masks) {
    const filled = found.masks.flatMap((best, i) => {
      const rows = best.map(({ piece, probability }) => ({ name: word(piece), probability }));
      rows[0].isChosen = true;
      return [element("h2", {}, found.masks.length > 1 ? `${MASK} ${i + 1}` : MASK), bars(rows)];
    });
    return [...filled, ...none(filled, `${MASK} in the part that the model reads`)];
  }
  const place = found.answers.find(({ text }) => text === found.answer);
  const rows = found.answers.slice(0, 3).map(({ text, probability }) => {
    return { name: text, probability, isChosen: text === found.answer };
  });
  return [
    marked(texts[1], found.answer ? [place] : []),
    ...none(found.answer, "answer in this text"),
    element("h2", {}, "Candidates"),
    bars(rows),
  ];
}

const none = (found, what) => (found.length ? [] : [element("p", {}, `There is no ${what}.`)]);
/** A piece as people read it: one that continues a word begins with a dash. */
const word = (piece) => {
  return piece.startsWith("\u2581") ? piece.slice(1) || "(space)" : `-${piece.replace(/^##/, "")}`;
};

/** Returns a list of names with bars of their probabilities. */
function bars(rows) {
  const order = [...rows].sort((a, b) => b.probability - a.probability).slice(0, MOST_BARS);
  const items = rows.filter((row) => order.includes(row)).map(({ name, probability, isChosen }) => {
    const bar = element("span", { style: `--share: ${probability}` });
    return element(
      "li",
      isChosen ? { class: "chosen" } : {},
      element("span", { class: "name" }, name),
      element("span", { class: "bar", "aria-hidden": "true" }, bar),
      element("span", { class: "share" }, `${(100 * probability).toFixed(1)} %`),
    );
  });
  return element("ol", { class: "bars" }, ...items);
}

/** Returns a text in which spans, in their order, are marked with their types. */
function marked(text, spans) {
  const parts = [];
  let at = 0;
  for (const { start, end, type, tag, probability } of spans) {
    const percent = `${(100 * probability).toFixed(1)} %`;
    const kind = type ?? tag;
    const label = kind ? [" ", element("small", {}, kind)] : [];
    parts.push(text.slice(at, start));
    parts.push(element("mark", { title: percent }, text.slice(start, end), ...label));
    at = end;
  }
  return element("p", { class: "text" }, ...parts, text.slice(at));
}
