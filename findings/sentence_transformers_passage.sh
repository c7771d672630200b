#!/bin/sh
# encode_document of sentence-transformers leaves out a prompt named "passage".
#
# Its documentation says that it takes the first of the model's prompts document, passage and
# corpus, and SentenceTransformer's own example of prompts is {"query": ..., "passage": ...}. But
# every model also gets an empty prompt "document", which comes first: documents are embedded
# without their prompt, queries with theirs, and nothing is said. Seen with sentence-transformers
# 6.2.0 and torch 2.13.0 on Python 3.11, x86-64:
#
#   prompts: {'query': 'question: ', 'document': '', 'passage': 'answer: '}
#   encode_query with its prompt: True
#   encode_document with its prompt: False
#   encode_document without any: True
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
install() { python3 -m pip install --quiet --target "$folder/$1" $2; }
install packages 'sentence-transformers==6.2.0 transformers==5.23.0 torch==2.13.0 numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import numpy as np
import tokenizers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

words = {word: place for place, word in enumerate("[UNK] question answer : it rains".split())}
tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
module = StaticEmbedding(tokenizer, embedding_weights=np.eye(len(words), dtype=np.float32))
prompts = {"query": "question: ", "passage": "answer: "}
model = SentenceTransformer(modules=[module], prompts=prompts, device="cpu")
print("prompts:", model.prompts)
query, document = model.encode_query("it rains"), model.encode_document("it rains")
print("encode_query with its prompt:", np.allclose(query, model.encode("question: it rains")))
print("encode_document with its prompt:", np.allclose(document, model.encode("answer: it rains")))
print("encode_document without any:", np.allclose(document, model.encode("it rains")))
END
found=$(PYTHONPATH="$folder/packages" python3 "$folder/run.py" 2>"$folder/errors") || cat "$folder/errors" >&2
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
