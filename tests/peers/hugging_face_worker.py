"""Hugging Face in a process of its own: torch and TensorFlow can't both be loaded in one.

Reads requests, one JSON object a line, and answers each with a JSON object.
"""

import contextlib
import io
import json
import os
import sys

import numpy as np
import torch
import transformers


def save(architecture, config, directory, seed, shard_size):
    model = getattr(transformers, architecture)(transformers.AlbertConfig(**config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        if config["embedding_size"] == config["hidden_size"]:
            # The release has no projection here, so only the identity can be loaded.
            mapping = model.base_model.encoder.embedding_hidden_mapping_in
            mapping.weight.copy_(torch.eye(config["hidden_size"]))
            mapping.bias.zero_()
    model.save_pretrained(directory, max_shard_size=shard_size)
    return {"files": sorted(os.listdir(directory))}


def run(architecture, directory, inputs, outputs):
    """Computes all outputs of a saved model; returns what loading it said."""
    cls = getattr(transformers, architecture)
    model, info = cls.from_pretrained(directory, output_loading_info=True)
    with np.load(inputs) as stored:
        features = {name: torch.tensor(stored[name]).long() for name in stored.files}
    model.eval()
    with torch.no_grad():
        result = model(**features, output_hidden_states=True)
    hidden = result.hidden_states
    values = {"hidden_states": np.stack([np.asarray(h) for h in hidden[1:]])}
    values |= {n: np.asarray(v) for n, v in result.items() if torch.is_tensor(v)}
    if model.base_model.pooler is not None and len(hidden[-1]) == len(features["input_ids"]):
        with torch.no_grad():
            pooled = model.base_model.pooler(hidden[-1][:, 0])
            values["pooler_output"] = np.asarray(model.base_model.pooler_activation(pooled))
    np.savez(outputs, **values)
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return {kind: sorted(str(key) for key in info[kind]) for kind in kinds}


def keep(config, weights, directory):
    """Saves an encoder with given weights; its pooler's are random."""
    model = transformers.AlbertModel(transformers.AlbertConfig(**config))
    with np.load(weights) as stored:
        given = {name: torch.tensor(stored[name]) for name in stored.files}
    missing, unexpected = model.load_state_dict(given, strict=False)
    model.save_pretrained(directory)
    return {"missing": sorted(missing), "unexpected": sorted(unexpected)}


def speech(directory, model_params, inputs, outputs):
    """Loads step_1000.t7 as StyleTTS2 does; computes what the encoder returns."""
    net = torch.load(os.path.join(directory, "step_1000.t7"), map_location="cpu")["net"]
    encoder = {n.removeprefix("module.encoder."): w for n, w in net.items() if ".encoder." in n}
    del encoder["embeddings.position_ids"]

    class CustomAlbert(transformers.AlbertModel):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs).last_hidden_state

    model = CustomAlbert(transformers.AlbertConfig(**model_params)).eval()
    missing, unexpected = model.load_state_dict(encoder, strict=False)
    with np.load(inputs) as stored, torch.no_grad():
        given = {name: torch.tensor(stored[name]) for name in ("input_ids", "attention_mask")}
    states = model(given["input_ids"], attention_mask=given["attention_mask"].int())
    np.savez(outputs, states=states.detach().numpy())
    return {"missing": sorted(missing), "unexpected": sorted(unexpected)}


class _WithTwoHeads(torch.nn.Module):
    """An encoder with PL-BERT's heads, under PL-BERT's names."""

    def __init__(self, config, num_words):
        super().__init__()
        self.encoder = transformers.AlbertModel(config)
        self.mask_predictor = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.word_predictor = torch.nn.Linear(config.hidden_size, num_words)

    def forward(self, ids, mask):
        states = self.encoder(ids, attention_mask=mask).last_hidden_state
        return self.mask_predictor(states), self.word_predictor(states)


def train_with_words(model_params, num_words, batches, source, target, outputs):
    """Trains and saves as PL-BERT's trainer does, from random weights or from its file.

    Each batch `<int>[5, B, S]` has the input symbols, the true symbols, ids of words, 1 where a
    word was chosen, and 1 where there is no padding. Returns what loading said, and the losses;
    `outputs` gets both heads' outputs for the first batch before training, and the weights after.
    """
    torch.manual_seed(11)
    model = _WithTwoHeads(transformers.AlbertConfig(**model_params), num_words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.0)
    step, said = 0, [[], []]
    if source:
        checkpoint = torch.load(source, map_location="cpu")
        net = {name.removeprefix("module."): x for name, x in checkpoint["net"].items()}
        said = [sorted(names) for names in model.load_state_dict(net, strict=False)]
        optimizer.load_state_dict(checkpoint["optimizer"])
        optimizer.param_groups[0]["lr"] = 1e-3
        step = checkpoint["step"]
    # Losses are means over documents; that of phonemes is divided by one more than their number.
    loss_of, losses = torch.nn.functional.cross_entropy, []
    with np.load(batches) as stored:
        found = [torch.tensor(stored[name]).long() for name in stored.files]
    with torch.no_grad():
        phonemes, words = model(found[0][0], found[0][4])
    before = {"phonemes": phonemes.numpy(), "words": words.numpy()}
    for given, symbols, words, chosen, mask in found:
        logits = model(given, mask)
        of_words, of_phonemes = [], []
        for i, length in enumerate(mask.sum(dim=1).tolist()):
            of_words.append(loss_of(logits[1][i, :length], words[i, :length]))
            if (places := chosen[i].nonzero()[:, 0]).numel():
                of_phonemes.append(loss_of(logits[0][i, places], symbols[i, places]))
        total = sum(of_phonemes, torch.zeros(()))
        both = total / (len(of_phonemes) + 1), sum(of_words) / len(of_words)
        losses.append([loss.item() for loss in both])
        optimizer.zero_grad()
        sum(both).backward()
        optimizer.step()
        step += 1
    net = {f"module.{name}": x for name, x in model.state_dict().items()}
    torch.save({"net": net, "step": step, "optimizer": optimizer.state_dict()}, target)
    np.savez(outputs, **{name: x.numpy() for name, x in net.items()}, **before)
    return {"said": said, "losses": losses}


def gradients(directory, inputs, outputs, dtype):
    """Computes the gradients of sum(states * weights), the weights being one of the inputs."""
    model = transformers.AlbertModel.from_pretrained(directory).eval().to(getattr(torch, dtype))
    with np.load(inputs) as stored:
        features = {name: torch.tensor(stored[name]) for name in stored.files}
    weights = features.pop("weights")
    states = model(**{name: x.long() for name, x in features.items()}).last_hidden_state
    (states * weights).sum().backward()
    found = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    np.savez(outputs, **found)
    return {}


def look(directory, inputs, outputs):
    """Computes the encoder's states and attention probabilities."""
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    with np.load(inputs) as stored:
        features = {name: torch.tensor(stored[name]).long() for name in stored.files}
    with torch.no_grad():
        result = model(**features, output_hidden_states=True, output_attentions=True)
    found = {"hidden_states": result.hidden_states, "attentions": result.attentions}
    np.savez(outputs, **{name: np.stack([*map(np.asarray, x)]) for name, x in found.items()})
    return {}


def tokenize(directory, texts, name="AutoTokenizer", added=()):
    tokenizer = getattr(transformers, name).from_pretrained(directory)
    if added:
        tokenizer.add_special_tokens({"additional_special_tokens": added})
        tokenizer.save_pretrained(directory)
    found = [tokenizer(text, return_offsets_mapping=True) for text in texts]
    names = {"ids": "input_ids", "offsets": "offset_mapping"}
    return {name: [each[key] for each in found] for name, key in names.items()}


def tokenize_pairs(directory, pairs):
    """Returns ids and segments; missing segments are 0, as a model would take them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = [tokenizer(*pair) for pair in pairs]
    zeros = [[0] * len(each["input_ids"]) for each in found]
    segments = [each.get("token_type_ids", no) for each, no in zip(found, zeros, strict=True)]
    return {"ids": [each["input_ids"] for each in found], "segments": segments}


def tag(directory, texts):
    how = {"model": directory, "aggregation_strategy": "first"}
    pipeline = transformers.pipeline("token-classification", **how)
    names = ("entity_group", "start", "end", "score")
    entities = [[[entity[name] for name in names] for entity in row] for row in pipeline(texts)]
    return {"entities": json.loads(json.dumps(entities, default=float))}


def embed(directory, texts):
    import sentence_transformers

    return {"vectors": sentence_transformers.SentenceTransformer(directory).encode(texts).tolist()}


def make_embedder(directory, encoder, length, pooling, units, activation, normalize, texts):
    """Saves an embedder, and returns what it answers once it is loaded."""
    import sentence_transformers
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    torch.manual_seed(1)
    transformer = Transformer(encoder, max_seq_length=length)
    width = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(width, pooling)]
    if units:
        function = getattr(torch.nn, activation)()
        modules.append(Dense(width, units, activation != "ReLU", activation_function=function))
    modules += [Normalize()] * normalize
    how = {"prompts": {"query": "find: "}, "similarity_fn_name": "euclidean"}
    sentence_transformers.SentenceTransformer(modules=modules, **how).save(directory)
    model = sentence_transformers.SentenceTransformer(directory)
    vectors = model.encode(texts)
    return {
        "vectors": vectors.tolist(),
        "queries": model.encode_query(texts).tolist(),
        "similarity": float(model.similarity(vectors[:1], vectors[1:2])),
    }


def train_embedder(directory, columns, scores, scale, dimensions):
    """Returns sentence-transformers' losses of texts by column, and gradients of the embeddings."""
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses

    model = sentence_transformers.SentenceTransformer(directory)
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    made = {"ranking": losses.MultipleNegativesRankingLoss(model, scale, **both)}
    if scores:
        made["cosine"] = losses.CosineSimilarityLoss(model)
    made |= {f"{n}, short": losses.MatryoshkaLoss(model, x, dimensions) for n, x in made.items()}
    found = {}
    for name, loss in made.items():
        model.zero_grad()
        value = loss([model.preprocess(column) for column in columns], torch.tensor(scores))
        value.backward()
        gradient = model[0].auto_model.embeddings.word_embeddings.weight.grad
        found[name] = [value.item(), gradient.tolist()]
    return found


def retrieve(directory, queries, corpus, relevant):
    """Returns sentence-transformers' metrics of retrieval, and its vectors."""
    import sentence_transformers
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    model = sentence_transformers.SentenceTransformer(directory)
    model.prompts = {}
    relevant = {name: set(found) for name, found in relevant.items()}
    evaluate = InformationRetrievalEvaluator(queries, corpus, relevant, write_csv=False)
    vectors = {text: model.encode(text).tolist() for text in (*queries.values(), *corpus.values())}
    return {"scores": evaluate(model), "vectors": vectors}


def execute(code):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "program", "exec"), {"__name__": "program"})
    return {"printed": printed.getvalue()}


def main():
    answers, sys.stdout = sys.stdout, sys.stderr
    transformers.logging.set_verbosity_error()
    for line in sys.stdin:
        request = json.loads(line)
        answer = globals()[request.pop("do")](**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
