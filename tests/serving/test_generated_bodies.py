"""Generated request bodies of all protocols: the work grows no faster than the body's size.

Work is counted in Python's instructions and in bytes of the answer; the work within a call of C
isn't measured. Also tables as clients write them, in which each row gets its answer.
"""

import asyncio
import contextlib
import csv
import gzip
import io
import json
import random
import sys
import threading
import time

import pytest

from albert_tf.serving.predict import Predictor
from tests.kit import made_up_models as made_up

hypothesis = pytest.importorskip("hypothesis")
pytest.importorskip("starlette")

from hypothesis import strategies as st  # noqa: E402

from albert_tf.serving.rest_api import create_app  # noqa: E402
from tests.serving.test_rest_protocols import asking  # noqa: E402

# Limits of instructions and of an answer's bytes: per byte of the body, plus a constant.
INSTRUCTIONS, INSTRUCTIONS_AT_LEAST = 100, 30_000
BYTES, BYTES_AT_LEAST = 50, 10_000
# Maximum size of an error's answer, in bytes.
REFUSAL_BYTES = 1000
# Maximum bytes of a repeated part of a body; maximum rows of a request.
MOST_BYTES, MOST, EMBEDDED = 20_000, 256, {"openai": 2048, "tei": 2048}


def many(each, between=","):
    """Returns an element, and after it another one that is repeated up to thousands of times."""

    def repeated(first, text, count):
        return between.join([first] + [text] * min(count, MOST_BYTES // (1 + len(text))))

    counts = (0, 0, 1, 16, MOST - 1, MOST - 1, MOST, 3000)
    return st.builds(repeated, each, each, st.sampled_from(counts))


def numbered(form):
    """Returns one text, or thousands of different ones."""
    counts = st.sampled_from((1, 3000))
    return counts.map(lambda count: ",".join(form.format(place) for place in range(count)))


def nested(each):
    depths = st.sampled_from((1, 2, 40, 300, 300))
    return st.builds(lambda text, depth: "[" * depth + text + "]" * depth, each, depths)


def members(**given):
    """Returns JSON of objects, mostly with all the members that are given."""
    fields = [st.builds(f'"{name}":{{}}'.format, mostly(each, ANY)) for name, each in given.items()]
    some = st.lists(st.one_of(fields), max_size=5).map(tuple)
    return mostly(st.tuples(*fields), some).map(lambda found: "{" + ",".join(found) + "}")


def mostly(usual, other):
    return st.sampled_from((usual,) * 7 + (other,)).flatmap(lambda each: each)


def listed(each):
    return st.builds("[{}]".format, many(each))


TEXT = st.sampled_from(('"a"', '""', '"Anna in Rome"', '{"b64":"QQ=="}', '"\\"[,"', '"é"'))
# The first has a far longer answer than the others.
LONG = '"' + "A " * 1000 + '"'
UNEVEN = st.sampled_from((16, MOST - 1)).map(lambda count: "[" + LONG + ',""' * count + "]")
ODD = ("1", "-1e999", "null", "true", "{}", "[]", "NaN", "9" * 5000, '"', "[", '"\\ud800"')
WIDE = numbered('"{}":1').map("{{{}}}".format)
ANY = st.recursive(
    TEXT | st.sampled_from(ODD),
    lambda each: nested(many(each)) | many(each) | st.builds('{{"text":{}}}'.format, each) | WIDE,
    max_leaves=5,
)
DEEP = st.builds("[{},{}]".format, nested(TEXT), many(TEXT))
TEXTS = mostly(listed(TEXT) | UNEVEN, nested(many(TEXT)) | DEEP)
ENDINGS = members(context=TEXT, endings=TEXTS)
ROWS = {"text": UNEVEN | listed(mostly(TEXT, members(text=TEXT))), "endings": listed(ENDINGS)}
# As many contexts as lists of endings.
EVEN = st.sampled_from((1, MOST)).map(
    lambda n: json.dumps({"context": ["a"] * n, "endings": [["a"]] * n}, separators=(",", ":"))
)
COLUMNS = {"text": TEXTS, "endings": EVEN | members(context=TEXTS, endings=listed(TEXTS))}
SHAPE = listed(mostly(st.just("1"), st.sampled_from(("2", "3", "17", "300", "0", "-1", "1.5"))))
NAMES = st.sampled_from(('["text"]', '["context","endings"]')) | numbered('"{}"').map("[{}]".format)
FRAME = members(columns=NAMES, data=listed(st.just('["a"]') | TEXTS))


def tensors(*names):
    """Returns requests with a tensor for each name; the last of several has 3 texts a row."""

    def tensor(name, width):
        axes = "" if width == 1 else f",{width}"
        counts = st.sampled_from((1, 2, 2, 2, 256, 1000))
        usual = st.builds(
            lambda text, rows: (
                f'{{"name":"{name}","datatype":"BYTES","shape":[{rows}{axes}],'
                f'"data":[{",".join([text] * rows * width)}]}}'
            ),
            TEXT,
            counts,
        )
        odd = {"name": st.just(f'"{name}"'), "datatype": st.just('"BYTES"'), "data": TEXTS}
        return usual | members(**odd, shape=SHAPE)

    given = [tensor(name, 3 if place else 1) for place, name in enumerate(names)]
    inputs = mostly(st.tuples(*given).map(",".join), many(st.one_of(given))).map("[{}]".format)
    output = st.sampled_from(('"probabilities"', '{"name":"probabilities"}'))
    return members(inputs=inputs) | members(inputs=inputs, outputs=listed(output))


CELL = st.sampled_from(("", "a", '"a"', '"a,b\n"', '"', '""', "é"))
ENDS = st.sampled_from(("\n", "\r\n", "\r", ""))
TABLE = many(st.builds("{}{}".format, many(CELL), ENDS), "")
JSON, LINES, TABLES = "application/json", "application/jsonlines", "text/csv"
V1, V2 = "/v1/models/{}:predict", "/v2/models/{}/infer"
FORMS = {"instances": ROWS["text"], "inputs": COLUMNS["text"], "dataframe_split": FRAME}
ONE = st.one_of([members(**{name: form}) for name, form in FORMS.items()])
MODELS = {"capitals": made_up.CAPITALS, "endings": made_up.ENDINGS, "embed": made_up.EMBEDDER}
SIZES = st.sampled_from(("2", "2", "null", "1000000"))
WRONG_IDS = st.sampled_from(("[2,10,3]", '[2,"a"]', f"[2{',5' * 3000}]"))
IDS = st.sampled_from(("[2,5,3]", "[2,3]"))
EMBEDDABLE = TEXT | TEXTS | listed(TEXT) | mostly(IDS, WRONG_IDS) | listed(IDS)
OPENAI = members(model=st.just('"embed"'), input=EMBEDDABLE, dimensions=SIZES)
FLAG = st.sampled_from(("true", "false", "null"))
COMPARED = members(source_sentence=TEXT, sentences=listed(TEXT) | listed(IDS))
# Each protocol's requests: path, media type, body.
PROTOCOLS = {
    "tensorflow": [
        (V1.format(name), JSON, members(instances=ROWS[form]) | members(inputs=COLUMNS[form]))
        for name, form in (("capitals", "text"), ("endings", "endings"))
    ],
    "open_inference": [
        (V2.format("capitals"), JSON, tensors("text")),
        (V2.format("endings"), JSON, tensors("context", "endings")),
    ],
    "openai": [("/v1/embeddings", JSON, OPENAI)],
    "tei": [
        ("/embed", JSON, members(inputs=EMBEDDABLE, normalize=FLAG, dimensions=SIZES)),
        ("/similarity", JSON, members(inputs=COMPARED, parameters=members(normalize=FLAG))),
    ],
    "one_model": [
        ("/invocations", JSON, ONE),
        ("/invocations", LINES, many(mostly(TEXT, ONE), "\n")),
        ("/invocations", TABLES, TABLE),
    ],
}


class Clock:
    """Counts the instructions of rest_*.py that Python runs, in this thread and in new ones."""

    def __init__(self):
        self.count = 0

    def __call__(self, frame, event, argument):
        if event == "call":
            if "/serving/rest_" not in frame.f_code.co_filename:
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self.count += event == "opcode"
        return self


@pytest.fixture(scope="module")
def ask():
    """Returns a function: a request -> status, answer, and counts of instructions and rows."""
    if sys.version_info[:2] == (3, 12):
        pytest.skip("CPython 3.12.1 crashes where each opcode of several threads is traced")
    models = {name: {"1": Predictor(*model)} for name, model in MODELS.items()}
    app = create_app(models, made_up.settings_of(access_log=False))
    clock = Clock()

    async def answer(path, kind, body, coding):
        sent = []
        messages = [{"type": "http.request", "body": body}]

        async def receive():
            return messages.pop() if messages else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        headers = {"host": "localhost", "content-type": kind, "content-encoding": coding}
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        clock.count = 0
        sys.settrace(clock)
        try:
            await app(scope, receive, send)
        finally:
            sys.settrace(None)
        content = b"".join(message.get("body", b"") for message in sent)
        return sent[0]["status"], content, clock.count, scope.get("instances", 0)

    # The thread of large bodies starts with the first of them.
    threading.settrace(clock)
    # In place of asyncio.Runner, which Python 3.10 lacks.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        yield lambda *request: loop.run_until_complete(answer(*request))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    threading.settrace(None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Accept": f"*/*{' ' * 40_000}b, */*"},
        {"Accept": f"*/*;q={'1' * 40_000}a, */*"},
        {"Content-Type": f'application/json; a="{";" * 40_000}'},
    ],
)
def test_long_headers(headers):
    with asking(made_up.CAPITALS) as ask:
        start = time.process_time()
        status, *_ = ask('{"instances":["a"]}', JSON, **headers)
    assert status == 200 and time.process_time() - start < 1


def refuse(constant):
    raise ValueError(constant)


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_generated_bodies(protocol, count, ask):
    requests = [st.tuples(st.just(p), st.just(k), b) for p, k, b in PROTOCOLS[protocol]]
    found = []

    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*hypothesis.HealthCheck],
    )
    @hypothesis.given(st.one_of(requests), mostly(st.none(), st.just(-1)), st.booleans())
    def check(request, end, is_packed):
        path, kind, body = request
        body = body.encode()[:end]
        sent, coding = (gzip.compress(body, 1), "gzip") if is_packed else (body, "identity")
        status, content, instructions, rows = ask(path, kind, sent, coding)
        found.append(status)
        assert status in (200, 400, 404, 413) or protocol == "tei" and status in (422, 424)
        json.loads(content, parse_constant=refuse)
        assert instructions <= INSTRUCTIONS * len(body) + INSTRUCTIONS_AT_LEAST
        most = BYTES * len(body) + BYTES_AT_LEAST if status == 200 else REFUSAL_BYTES
        assert len(content) <= most and rows <= EMBEDDED.get(protocol, MOST)

    check()
    # Enough bodies must be valid; otherwise only the first check of each would be tested.
    assert found.count(200) > count / 5


PIECES = ["a", "é", " ", ",", '"', "'", ";", "\t", "\r\n", "\n", "\u2028", "\ufeff", "Rome", "]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [made_up.CAPITALS, made_up.SCORE, made_up.ENDINGS],
    ids=("capitals", "score", "endings"),
)
def test_tables_of_a_writer_are_answered_row_by_row(model):
    rng = random.Random(len(model[0].text_names))
    names, many = model[0].text_names, model[0].takes_many
    columns = [*names, *names[-1:] * many]

    def text(place):
        # The "x" keeps rows from being taken for headings.
        return "x" * (place == 0) + "".join(rng.choices(PIECES, k=rng.randint(0, 6)))

    tables = []
    for _ in range(100):
        end, header = rng.choice(("\n", "\r\n", "\r")), rng.choice((";header=present", "", None))
        # Python's writer quotes its own line terminator, but not other line ends.
        quoting = rng.choice((csv.QUOTE_ALL, csv.QUOTE_MINIMAL if end != "\r" else csv.QUOTE_ALL))
        rows = [[*map(text, range(len(columns)))] for _ in range(rng.randint(1, 20))]
        order = [*range(len(columns))]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator=end, quoting=quoting)
        if header is not None:
            rng.shuffle(order)
            writer.writerow([columns[place] for place in order])
        for row in rows:
            file.write(end * rng.choice((0, 0, 1, 2)))
            writer.writerow([row[place] for place in order])
        content = (file.getvalue() + end).encode(rng.choice(("utf-8", "utf-8-sig")))
        # The endings have the order of their columns.
        endings = [place for place in order if place] if many else []
        given = [[row[0], [row[place] for place in endings]] if many else row for row in rows]
        tables.append((content, f"text/csv{header or ''}", given))
    with asking(model) as ask:
        for content, kind, given in tables:
            status, _, answer = ask(content, kind)
            body = {"instances": [dict(zip(names, row, strict=True)) for row in given]}
            same, _, expected = ask(json.dumps(body), "application/json")
            assert (status, same, answer) == (200, 200, expected), content
