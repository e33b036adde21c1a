#!/usr/bin/env python3
"""A small stand-in of a model hub, for tests: Hugging Face's API for one or more repositories held in memory, and on request the
misbehaviour of real networks and servers.

    with Hub() as hub:
        hub.add("org/name", {"model.gguf": b"..."}, lfs=["model.gguf"])
        hub.faults["model.gguf"] = ["drop", "wrong"]      # what happens to the next fetches of that file, in order
        run(..., env={"HF_ENDPOINT": hub.url})

Uses the standard library only.
"""
import collections
import hashlib
import http.server
import json
import threading
import urllib.parse


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, name, files, lfs, gated):
        self.name = name
        self.gated = gated
        self.revisions = {}
        self.commits = {}
        self.update(files, lfs, "main")

    def update(self, files, lfs, revision):
        commit = hashlib.sha1(json.dumps([self.name, revision, sorted(map(str, files.items()))]).encode()).hexdigest()
        self.revisions[revision] = commit
        self.commits[commit] = (dict(files), set(lfs))
        return commit


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Clients that hang up are what some tests are about."""


class Hub:
    def __init__(self, page_size=1000):
        self.repos = {}
        self.faults = collections.defaultdict(list)  # path or "api" → kinds, taken one a request
        self.requests = []                            # (method, path, Range, whether a token came)
        self.tokens = set()                           # what opens gated repositories
        self.page_size = page_size
        self.lock = threading.Lock()
        self.barrier = None

    def add(self, name, files, lfs=(), gated=False):
        self.repos[name] = Repo(name, files, lfs, gated)
        return self.repos[name]

    def fetches(self, path):
        return [request for request in self.requests if request[1].endswith("/" + path) and "/cdn/" in request[1]]

    def take_fault(self, key):
        with self.lock:
            return self.faults[key].pop(0) if self.faults[key] else None

    def __enter__(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.cdn = Server(("127.0.0.1", 0), Handler)  # large files live at another origin, as with real hubs
        self.threads = []
        for server in (self.server, self.cdn):
            server.hub = self
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            self.threads.append(thread)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.cdn_url = f"http://127.0.0.1:{self.cdn.server_port}"
        return self

    def __exit__(self, *ignored):
        for server in (self.server, self.cdn):
            server.shutdown()
        for thread in self.threads:
            thread.join()
        for server in (self.server, self.cdn):
            server.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def reply(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        with hub.lock:
            hub.requests.append((self.command, path, self.headers.get("Range"), bool(token)))
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        is_cdn = parts[0] == "cdn"
        name = "/".join(parts[2:4] if is_api else parts[1:3] if is_cdn else parts[:2])
        repo = hub.repos.get(name)
        if is_api:
            fault = hub.take_fault("api")
            if fault is not None:
                return self.fault_reply(fault)
        if repo is None:
            return self.reply(401, {"error": "Invalid username or password."}, X_Error_Code="RepoNotFound",
                              X_Error_Message="Repository not found")
        if repo.gated and token not in hub.tokens and not is_cdn and (not is_api or parts[4] == "tree"):
            return self.reply(403 if token else 401, {"error": "gated"}, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        if is_api:
            return self.api(repo, parts[4], "/".join(parts[5:]), urllib.parse.parse_qs(url.query))
        if is_cdn:
            return self.send_file(repo, parts[3], "/".join(parts[4:]))
        return self.resolve(repo, parts[3], "/".join(parts[4:]))

    def api(self, repo, kind, revision, query):
        commit = repo.revisions.get(revision, revision)
        if commit not in repo.commits:
            return self.reply(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        if kind == "revision":
            return self.reply(200, {"id": repo.name, "sha": commit, "siblings": []})
        files, lfs = repo.commits[commit]
        rows = []
        for path, data in sorted(files.items()):
            row = {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
            if path in lfs:
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            rows.append(row)
            if "/" in path:
                rows.insert(0, {"type": "directory", "path": path.rsplit("/", 1)[0], "oid": git_hash(b""), "size": 0})
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + self.server.hub.page_size
        headers = {}
        if end < len(rows):
            headers["Link"] = f'<{self.server.hub.url}/api/models/{repo.name}/tree/{commit}?recursive=true&cursor={end}>; rel="next"'
        return self.reply(200, rows[begin:end], **headers)

    def resolve(self, repo, revision, path):
        hub = self.server.hub
        commit = repo.revisions.get(revision, revision)
        files, lfs = repo.commits.get(commit, ({}, ()))
        if path not in files:
            return self.reply(404, b"", X_Error_Code="EntryNotFound")
        data = files[path]
        if path in lfs:
            return self.reply(302, b"", Location=f"{hub.cdn_url}/cdn/{repo.name}/{commit}/{urllib.parse.quote(path)}", X_Repo_Commit=commit,
                              X_Linked_Etag=f'"{hashlib.sha256(data).hexdigest()}"', X_Linked_Size=str(len(data)), ETag='"pointer"')
        return self.send_file(repo, commit, path)

    def fault_reply(self, fault):
        status = {"500": 500, "503": 503, "404": 404}.get(fault)
        if fault == "429":
            return self.reply(429, {"error": "slow down"}, Retry_After="0")
        if fault == "429-long":
            return self.reply(429, {"error": "slow down"}, Retry_After="1000")
        if fault == "html":
            return self.reply(200, b"<html>log in</html>", Content_Type="text/html")
        return self.reply(status, {"error": "stand-in fault"})

    def send_file(self, repo, commit, path):
        hub = self.server.hub
        data = repo.commits[commit][0][path]
        etag = f'"{git_hash(data)}"'
        if self.command == "HEAD":
            return self.reply(200, data, X_Repo_Commit=commit, ETag=etag)
        fault = hub.take_fault(path)
        if fault in ("429", "429-long", "500", "503", "404"):
            return self.fault_reply(fault)
        if fault == "wrong":
            data = bytes(byte ^ 1 for byte in data)
        begin, status, headers = 0, 200, {}
        asked = self.headers.get("Range")
        if asked and fault != "no-range":
            begin = int(asked.removeprefix("bytes=").split("-")[0])
            if begin >= len(data) or fault == "416":
                return self.reply(416, b"")
            status = 206
            shown = begin + 1 if fault == "other-range" else begin
            headers["Content-Range"] = f"bytes {shown}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        if fault == "wait":
            hub.barrier.wait(30)
        length = len(body)
        if fault == "long":
            body += b"more than was promised"
            length = len(body)
        if fault == "short":  # an honest length of a file that is cut
            body = body[:len(body) // 2]
            length = len(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", commit)
        if fault == "lie":  # a length that is not what comes
            self.send_header("Content-Length", str(length + 5))
        elif fault != "unsized":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if fault in ("drop", "lie", "unsized"):
            self.close_connection = True
        self.wfile.write(body[:len(body) // 2] if fault == "drop" else body)
        self.wfile.flush()
        return None
