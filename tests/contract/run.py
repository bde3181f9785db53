#!/usr/bin/env python3
"""The contract run: schemathesis against the real processes, by every kind of caller.

Usage: ./dev with tests/contract/run.py [--examples N] [--seed N]

Needs DATABASE_URL and REDIS_URL of empty stores. Takes the binary from HOLDFAST_BIN (default: target/debug/holdfast)
and schemathesis from SCHEMATHESIS or PATH; else it installs it into a virtual environment under target/.
Exit code 0: no failure.
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
HOLDFAST = os.environ.get("HOLDFAST_BIN", str(TARGET / "debug" / "holdfast"))
SCHEMATHESIS_VERSION = "4.32.5"
READY_LIMIT_S = 60

# The seats and categories of the examples in the API's description, so that the examples are good ones.
CSV = "block,row,column,category\n" + "".join(
    f"{block},{row},{column:02},{category}\n"
    for block, category in (("101", "Orange"), ("테이블", "Table"))
    for row in ("AA", "B")
    for column in range(1, 21)
)


def find_schemathesis():
    named = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")
    if named:
        return named
    home = TARGET / "contract-venv"
    program = home / "bin" / "schemathesis"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        wanted = f"schemathesis=={SCHEMATHESIS_VERSION}"
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", wanted], check=True)
    return str(program)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def holdfast(*arguments):
    done = subprocess.run([HOLDFAST, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def call(url, method="GET", body=None, key=None, content_type="application/json"):
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, method=method)
    if data is not None:
        request.add_header("content-type", content_type)
    if key:
        request.add_header("authorization", f"Bearer {key}")
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def wait_for(what, look):
    until = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < until:
        try:
            found = look()
        except (urllib.error.URLError, ConnectionError):
            found = None
        if found:
            return found
        time.sleep(0.1)
    sys.exit(f"waited {READY_LIMIT_S} s for {what}")


def open_event(api, key):
    imported = call(f"{api}/v1/venues/import?format=csv&name=Contract&time_zone=Asia/Seoul", "POST", CSV, key, "text/csv")
    event = call(
        f"{api}/v1/events",
        "POST",
        {
            "venue": imported["venue"],
            "title": "Contract",
            "starts_at": "2035-12-05T14:00",
            "currency": "KRW",
            "prices": {"Orange": 25000, "Table": 55000},
            "extensions_max": 3,
        },
        key,
    )
    path = f"{api}/v1/events/{event['id']}"
    call(f"{path}/open", "POST", None, key)
    wait_for("the event to be on sale", lambda: call(path)["status"] == "on_sale")
    seats = call(f"{path}/blocks/101/seats")["seats"]
    held = call(f"{path}/reservations", "POST", {"seats": [seats[0]["id"]], "buyer": "anna"}, key)
    call(f"{api}/v1/reservations/{held['id']}/payments", "POST", {"provider": "fake", "token": "tok_ok"}, key)


def run(schemathesis, api, credentials, options):
    command = [schemathesis, "--config-file", str(HERE / "schemathesis.toml"), "run", f"{api}/openapi.json"]
    command += ["--checks", "all", "--max-examples", str(options.examples), "--seed", str(options.seed)]
    command += ["--continue-on-failure", "--no-color"]
    if credentials:
        command += ["-H", f"Authorization: Bearer {credentials}"]
    # It keeps a folder of its own beside wherever it is run.
    with tempfile.TemporaryDirectory() as scratch:
        return subprocess.run(command, cwd=scratch, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=50, help="cases for each endpoint and phase")
    # Always the same cases, so that a change is judged by what it changes; look further with other seeds.
    parser.add_argument("--seed", type=int, default=1, help="which cases")
    options = parser.parse_args()
    schemathesis = find_schemathesis()
    holdfast("migrate")
    keys = {
        scope: json.loads(holdfast("keys", "create", "--scope", scope, "--name", "contract", "--json"))["key"]
        for scope in ("admin", "sales")
    }
    addr, ops = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    limits = {f"HOLDFAST_RATE_{who}_PER_SECOND": "0" for who in ("KEY", "BUYER", "ADDRESS")}
    environment = {**os.environ, **limits, "HOLDFAST_FAKE_PROVIDER": "true", "HOLDFAST_LOG": "warn"}
    processes = [
        subprocess.Popen([HOLDFAST, "api", "--addr", addr, "--ops-addr", ops], env=environment),
        subprocess.Popen([HOLDFAST, "worker"], env=environment),
    ]
    try:
        wait_for("the api", lambda: urllib.request.urlopen(f"http://{ops}/readyz").status == 200)
        api = f"http://{addr}"
        open_event(api, keys["admin"])
        buyer = call(f"{api}/v1/buyers", "POST")["token"]
        failed = []
        for name, credentials in (("admin", keys["admin"]), ("sales", keys["sales"]), ("buyer", buyer), ("nobody", None)):
            print(f"\n=== as {name}", flush=True)
            if run(schemathesis, api, credentials, options) != 0:
                failed.append(name)
        died = [process.args[1] for process in processes if process.poll() is not None]
        if failed or died:
            sys.exit(f"failed as: {', '.join(failed) or 'nobody'}; processes that died: {', '.join(died) or 'none'}")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


if __name__ == "__main__":
    main()
