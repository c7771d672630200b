/** Runs the model beside the page, which stays responsive. */

import { Model } from "./model.js";

const model = Model.load("./");
model.then(
  () => postMessage({}),
  (error) => postMessage({ error: `The model can't be loaded: ${error.message}` }),
);

onmessage = async ({ data: texts }) => {
  try {
    postMessage({ answer: await (await model).answer(texts) });
  } catch (error) {
    postMessage({ error: `No answer: ${error.message}` });
  }
};
