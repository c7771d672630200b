"""Made-up models for albert-serve, without weights: they count letters or pick words of a text."""

import json
import types

import numpy as np

from albert_tf.answers.embed import Embed
from albert_tf.serving.settings import ServerSettings


def kind(*names, takes_many=False):
    """Returns what a Predictor needs of a Kind to find something in texts."""
    ranks = {name: 1 + (takes_many and name == names[-1]) for name in names}
    many = {"takes_many": takes_many, "text_ranks": ranks}
    return types.SimpleNamespace(text_names=names, vector="", takes_ids=False, **many)


def capitals(inputs):
    if ["bad"] in inputs:
        raise ValueError("this text is bad")
    answers = []
    for (text,) in inputs:
        words = np.array([word for word in text.split() if word.istitle()], object)
        answer = {"entities": words, "probabilities": np.full(len(words), 0.5, np.float32)}
        answers.append({**answer, "length": np.int32(len(text))})
    return answers


def endings(inputs):
    """Chooses the longest ending."""
    shares = [np.array([len(each) for each in given], np.float32) for _, given in inputs]
    return [
        {"probabilities": row, "choice": np.int32(row.argmax()), "ending": max(given, key=len)}
        for row, (_, given) in zip(shares, inputs, strict=True)
    ]


def score(inputs):
    return [{"score": np.float32(len(a + 2 * b))} for a, b in inputs]


def embed(inputs):
    """Counts characters, or ids; an empty text has a vector of zeros."""
    rows = [(np.array([len(text), 0.1 * bool(text)], np.float32), len(text)) for (text,) in inputs]
    return [{"embedding": vector, "tokens": np.int32(2 + length)} for vector, length in rows]


CAPITALS = kind("text"), capitals
ENDINGS = kind("context", "endings", takes_many=True), endings
SCORE = kind("text_a", "text_b"), score
# Its ids are 0 to 9, and its texts at most 14 characters, which are its pieces.
PIECES = types.SimpleNamespace(
    **{"vocab_size": 10, "cls_id": 2, "sep_id": 3, "one_segment": False},
    encode=lambda text, most: [5] * min(len(text), most),
)
EMBEDDER = Embed(query_prompt="find: ", max_seq_length=16), embed, False, "", PIECES
# The answer of CAPITALS to "Anna in Rome", as JSON.
ANNA = {"entities": ["Anna", "Rome"], "probabilities": [0.5, 0.5], "length": 12}


def settings_of(**values):
    return ServerSettings.of(model=("x",), **values)


def post(client, path, content, **headers):
    """Returns the status and the JSON of a client's answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.post(path, content=body, headers=headers)
    return answer.status_code, answer.json()
