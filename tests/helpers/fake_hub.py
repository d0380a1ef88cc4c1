"""A Hugging Face hub on this machine, with a few small repositories."""

import hashlib
import http.server
import json
import re
import threading

GATED = "org/gated"


class Local(http.server.ThreadingHTTPServer):
    """Serves on this machine until the context ends."""

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *args):
        self.shutdown()
        super().__exit__(*args)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Hub(Local):
    """A hub with repositories {"org/name": {revision: {path: content}}}; `fetched` has the paths that were read."""

    def __init__(self, repositories):
        self.repositories, self.fetched = repositories, []
        super().__init__(Handler)


def commit_of(revision):
    return hashlib.sha1(revision.encode()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.partition("?")[0].removeprefix("/api/models")
        name, kind, revision, file = re.fullmatch(r"/([\w-]+/[\w-]+)/(\w+)/([\w.-]+)/?(.*)", path).groups()
        revisions = self.server.repositories.get(name)
        if revisions is None:
            return self.refuse(404, "RepoNotFound")
        commits = {commit_of(r): files for r, files in revisions.items()}
        files = revisions.get(revision, commits.get(revision))
        if files is None:
            return self.refuse(404, "RevisionNotFound")
        commit = commit_of(revision) if revision in revisions else revision
        if kind == "revision":
            return self.answer(json.dumps({"id": name, "sha": commit, "siblings": []}))
        if kind == "tree":
            return self.answer(json.dumps([{"type": "file", "path": p, "size": len(c), "oid": commit_of(c)}
                                           for p, c in files.items()]))  # fmt: skip
        if name == GATED:
            return self.refuse(403, "GatedRepo")
        if self.command == "GET":
            self.server.fetched.append(file)
        self.answer(files[file], {"X-Repo-Commit": commit, "ETag": f'"{commit_of(files[file])}"'})

    do_HEAD = do_GET

    def answer(self, text, headers=(), status=200):
        self.send_response(status)
        for name, value in {"Content-Length": len(text.encode()), **dict(headers)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text.encode())

    def refuse(self, status, code):
        self.answer("", {"X-Error-Code": code}, status)

    def log_message(self, *args):
        pass
