"""A stub of the Hugging Face Hub."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping

COMMIT = "0123456789abcdef0123456789abcdef01234567"


Files = Mapping[str, bytes]


@contextlib.contextmanager
def serve(repositories: Mapping[str, Files]) -> Iterator[tuple[str, list[str]]]:
    """Serves the files of repositories: OWNER/NAME of a model, datasets/OWNER/NAME of a data set.

    Yields the address, and the names of the files fetched so far.
    """
    fetched: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            name = next((n for n in repositories if f"/{n}/" in f"{path}/"), "none")
            files = repositories.get(name, {})
            file = path.removeprefix(f"/{name}/resolve/{COMMIT}/")
            api = f"/api/{name}" if name.startswith("datasets/") else f"/api/models/{name}"
            if file in files:
                if self.command == "GET":
                    fetched.append(file)
                tag = {"ETag": f'"{_digest(files[file])}"', "X-Repo-Commit": COMMIT}
                self._send(files[file], tag)
            elif path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                listed = [{"rfilename": file} for file in files]
                self._send({"id": name, "modelId": name, "sha": COMMIT, "siblings": listed})
            elif path == f"{api}/tree/{COMMIT}":
                self._send([{"type": "file", **_entry(*each)} for each in files.items()])
            else:
                kind = "Revision" if path.startswith(f"{api}/") else "Repo"
                self._send({}, {"X-Error-Code": f"{kind}NotFound"}, 404)

        do_HEAD = do_GET

        def _send(self, answer: object, headers: Mapping[str, str] = {}, status: int = 200) -> None:
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for header, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(content if self.command == "GET" else b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _entry(file: str, content: bytes) -> dict[str, object]:
    return {"path": file, "size": len(content), "oid": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
