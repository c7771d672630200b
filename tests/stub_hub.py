"""A local server that answers huggingface_hub as the Hub does, for one model."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def serve(name: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serves a model's files; yields the address, and the names of the files fetched so far."""
    fetched: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            download, api = f"/{name}/resolve/{COMMIT}/", f"/api/models/{name}"
            if path.startswith(download) and path.removeprefix(download) in files:
                self._send_file(path.removeprefix(download))
            elif path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                listed = [{"rfilename": file} for file in files]
                self._send({"id": name, "modelId": name, "sha": COMMIT, "siblings": listed})
            elif path == f"{api}/tree/{COMMIT}":
                self._send([_entry(file, content) for file, content in files.items()])
            else:
                known = path.startswith(f"{api}/")
                self._send({}, 404, "RevisionNotFound" if known else "RepoNotFound")

        do_HEAD = do_GET

        def _send_file(self, file: str) -> None:
            content = files[file]
            self.send_response(200)
            self.send_header("ETag", f'"{_digest(content)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                fetched.append(file)
                self.wfile.write(content)

        def _send(self, answer: object, status: int = 200, error: str = "") -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            if error:
                self.send_header("X-Error-Code", error)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
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
    return {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
