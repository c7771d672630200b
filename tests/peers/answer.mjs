// Reads lists of texts, one a line, and prints what a page's model answers to each, in Node.
//   node answer.mjs PAGE_DIRECTORY
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import * as ort from "onnxruntime-node";

const [directory] = process.argv.slice(2);
const { Model } = await import(pathToFileURL(`${directory}/model.js`));
const page = JSON.parse(readFileSync(`${directory}/page.json`));
const files = [page.model, page.vocabulary].map((name) => readFileSync(`${directory}/${name}`));
const model = await Model.create(page, ort, ...files);
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  console.log(JSON.stringify(await model.answer(JSON.parse(line))));
}
