/** The page: a model in a worker, or at a server, answers what is typed. */

import { element, MASK, show } from "./answers.js";
import * as server from "./server.js";

const PAUSE_MS = 150; // Of typing, before an answer is asked for.
const LABELS_SHOWN = 12; // Of the labels that a model answers.
const LABELS = {
  text: "Text",
  text_a: "First text",
  text_b: "Second text",
  question: "Question",
  context: "Context",
  endings: "Endings, one a line",
  other: "Another text, to compare",
};
// A model answers without them.
const OPTIONAL = ["text_b", "other"];

const ids = ["title", "note", "models", "model", "about", "form", "status", "answer", "shell"];
const [title, note, models, choice, about, form, status, answer, shell] = ids.map((id) => {
  return document.getElementById(id);
});

// --- the model: what has `inputs`, the names of its texts, and answers them ----------------------

/** Returns the model of page.json, which a worker runs. */
function openWorker({ kind: { task, pairs } }) {
  const worker = new Worker("worker.js", { type: "module" });
  // It is sent nothing before it has replied.
  const reply = async () => {
    const { data } = await new Promise((resolve) => (worker.onmessage = resolve));
    if (data.error) throw new Error(data.error);
    return data.answer;
  };
  const [pair, question] = [["text_a", "text_b"], ["question", "context"]];
  return {
    inputs: { embed: ["text", "other"] }[task] ?? (task.startsWith("answer") ? question : pairs ? pair : ["text"]),
    hasMasks: task === "fill_mask",
    ready: reply(),
    answer(texts) {
      worker.postMessage(texts);
      return reply();
    },
  };
}

let model = { inputs: [] };

/** Takes a model, and shows fields for its texts with what is known of them, by name. */
function use(opened, known, told) {
  model = opened;
  introduce(told);
  form.replaceChildren();
  for (const id of model.inputs) {
    const field = element(id === "question" ? "input" : "textarea", { id });
    field.value = known[id] ?? "";
    form.append(element("label", { for: id }, LABELS[id]), field);
    if (id === "text" && model.hasMasks) form.append(maskButton(field));
  }
  ask();
}

/** Says what the model answers, and offers its examples. */
function introduce({ description = "", labels, examples = [] }) {
  const more = labels?.length > LABELS_SHOWN ? " and others" : "";
  const answers = labels?.length ? `It answers ${labels.slice(0, LABELS_SHOWN).join(", ")}${more}.` : "";
  const offered = examples.map((texts, i) => {
    const button = element("button", { type: "button" }, `Example ${i + 1}`);
    button.addEventListener("click", () => fill(texts));
    return button;
  });
  const text = [description, answers].filter(Boolean).join(" ");
  about.replaceChildren(element("span", {}, text), ...offered);
}

/** Puts texts into their fields; the last field takes all that are left, each on a line. */
function fill(texts) {
  model.inputs.forEach((id, i) => {
    const own = i < model.inputs.length - 1 ? texts.slice(i, i + 1) : texts.slice(i);
    form.elements[id].value = own.join("\n");
  });
  ask();
}

function maskButton(field) {
  const button = element("button", { type: "button" }, `Insert ${MASK}`);
  button.addEventListener("click", () => {
    field.setRangeText(MASK, field.selectionStart, field.selectionEnd, "end");
    field.focus();
    ask();
  });
  return button;
}

/** Opens a model of the server; until then the one before is asked. */
async function choose(name, known) {
  choice.value = name;
  const opened = await server.open(page.server, name);
  if (choice.value === name) use(opened, known, served.get(name)); // Else another one was chosen.
}

// --- questions: while one is answered, only the last of later ones waits -------------------------

let [isAsking, isStale, timer] = [false, false, 0];

async function ask() {
  isStale = true;
  if (isAsking) return;
  isAsking = true;
  while (isStale) {
    isStale = false;
    await askOnce().catch(fail);
  }
  isAsking = false;
}

async function askOnce() {
  await model.ready;
  const [asked, typed] = [model, values()];
  const texts = Object.entries(typed).map(([id, text]) => {
    return id === "endings" ? text.split("\n").filter((line) => line.trim()) : text;
  });
  if (page.server) describe(asked, texts, typed);
  if (!asked.inputs.every((id) => OPTIONAL.includes(id) || typed[id].trim())) {
    answer.replaceChildren();
    say("Type a text.");
    return;
  }
  const since = performance.now();
  const found = await asked.answer(texts);
  if (isStale) return;
  answer.replaceChildren(...show(found, texts.flat()));
  say(`Answered in ${Math.round(performance.now() - since)} ms.`);
}

/** Returns what is typed, by the names of the model's texts. */
function values() {
  return Object.fromEntries(model.inputs.map((id) => [id, form.elements[id].value]));
}

/** Writes what is asked into the page's address, and as a command. */
function describe({ name, request }, texts, typed) {
  history.replaceState(null, "", `#${new URLSearchParams({ model: name, ...typed })}`);
  const { url, body } = request(texts);
  const quoted = `'${body.replaceAll("'", "'\\''")}'`;
  shell.querySelector("pre").textContent = `curl -d ${quoted} \\\n    ${url}`;
}

function say(text, isError = false) {
  status.textContent = text;
  status.classList.toggle("error", isError);
}

function fail(error) {
  answer.replaceChildren();
  say(error.message, true);
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
});
choice.addEventListener("change", () => {
  choose(choice.value, values()).catch((error) => {
    choice.value = model.name;
    fail(error);
  });
});

// --- the start -----------------------------------------------------------------------------------

let page, served;

async function begin() {
  page = await (await fetch("page.json")).json();
  document.title = title.textContent = page.title;
  if (!page.server) {
    note.textContent = "The model runs in your browser: what you type stays here.";
    return use(openWorker(page), {}, { ...page, labels: page.kind.labels });
  }
  note.textContent = "What you type is sent to this server.";
  served = await server.list(page.server);
  const names = [...served.keys()];
  choice.append(...names.map((each) => element("option", {}, each)));
  models.hidden = shell.hidden = false;
  const { model: name, ...known } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  await choose(names.includes(name) ? name : names[0], known);
}

begin().then(() => form.elements[0].focus(), fail);
