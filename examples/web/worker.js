/** Runs the model beside the page, which stays responsive. */

import { Model } from "./model.js";

const model = Model.load("./");
model.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ error: `The model can't be loaded: ${error.message}` }),
);

onmessage = async ({ data: { number, texts } }) => {
  try {
    postMessage({ number, answer: await (await model).answer(texts) });
  } catch (error) {
    postMessage({ number, error: `No answer: ${error.message}` });
  }
};
