// Answers of @huggingface/transformers' pipelines: a request as JSON, then its answer, a line each.
import { AutoConfig, AutoTokenizer, env, pipeline } from "@huggingface/transformers";
import { createInterface } from "node:readline";

env.allowRemoteModels = false;
env.localModelPath = "/";

const DO = {
  async ids({ directory, inputs }) {
    const tokenizer = await AutoTokenizer.from_pretrained(directory);
    return inputs.map((text) => tokenizer.encode(text));
  },
  async answer({ directory, task, dtype, inputs, options }) {
    let config = null;
    if (task === "token-classification") {
      // It has no class for ALBERT's tags; BERT's does the same with what the file returns.
      config = await AutoConfig.from_pretrained(directory);
      config.model_type = "bert";
    }
    const answer = await pipeline(task, directory, { dtype, config });
    const found = [];
    for (const given of inputs) {
      const each = await answer(...[given].flat(), options);
      found.push(each.tolist ? each.tolist() : each);
    }
    return found;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, ...request } = JSON.parse(line);
  console.log(JSON.stringify(await DO[what](request)));
}
