// Reads texts, a JSON string a line, and prints what the page's tokenizer makes of each.
//   node tokenize.mjs PAGE_DIRECTORY VOCABULARY OPTIONS
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [directory, vocabulary, options] = process.argv.slice(2);
const { createTokenizer } = await import(pathToFileURL(`${directory}/tokenizer.js`));
const { splitWords } = await import(pathToFileURL(`${directory}/words.js`));
const tokenizer = createTokenizer(readFileSync(vocabulary), JSON.parse(options));
const lines = [];
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const text = JSON.parse(line);
  // Python counts characters, JavaScript UTF-16 units.
  const place = (at) => [...text.slice(0, at)].length;
  const ids = tokenizer.encode(text);
  const found = tokenizer.encodeWithOffsets(text);
  const offsets = found.map(({ start, end }) => [place(start), place(end)]);
  const words = splitWords(text).map((span) => span.map(place));
  lines.push(JSON.stringify({ ids, same: found.map(({ id }) => id), offsets, words }));
}
process.stdout.write(lines.map((line) => line + "\n").join(""));
