#!/usr/bin/env python3
"""Measures how much drafts bring a server, on text that the model was not trained on.

Usage: measure.py PROMPTS.json COMMAND...

COMMAND starts `rocmforge serve` or llama.cpp's `llama-server` on port 8099. Each prompt is continued alone, greedily and
sampled, in some rounds. Prints a line for each: tokens per second of decoding, drafted tokens and which share of them was
right, and a hash of the answers, which is the same for the same text.
"""

import hashlib
import http.client
import json
import statistics
import subprocess
import sys
import time

PORT = 8099
N_ANSWER, N_ROUNDS = 256, 4
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}


def ask(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
    connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def is_ready():
    try:
        return ask("GET", "/health")[0] == 200
    except OSError:
        return False


def wait(server):
    until = time.monotonic() + 60
    while not is_ready():
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit("the server did not start")
        time.sleep(0.1)


def measure(prompts, sampling):
    """Continues all prompts. Returns sums of tokens, their time and their drafts, and a hash of the answers."""
    sums = {"n": 0, "ms": 0.0, "drafted": 0, "accepted": 0}
    texts = hashlib.sha256()
    for seed, prompt in enumerate(prompts):
        request = {"prompt": prompt, "n_predict": N_ANSWER, "seed": seed, **sampling}
        status, answer = ask("POST", "/completion", request)
        if status != 200:
            raise SystemExit(answer)
        answer = json.loads(answer)
        timings = answer["timings"]
        sums["n"] += timings["predicted_n"]
        sums["ms"] += timings["predicted_ms"]
        sums["drafted"] += timings.get("draft_n", 0)
        sums["accepted"] += timings.get("draft_n_accepted", 0)
        texts.update(answer["content"].encode())
    return {**sums, "text": texts.hexdigest()[:6]}


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    command = sys.argv[2:]
    with open(sys.argv[1]) as file:
        prompts = json.load(file)
    if is_ready():
        raise SystemExit(f"another server has port {PORT}: stop it first")
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(server)
        for how, sampling in SAMPLINGS.items():
            # The first round does not count.
            rounds = [measure(prompts, sampling) for _ in range(1 + N_ROUNDS)][1:]
            speeds = [each["n"] / each["ms"] * 1000 for each in rounds]
            drafted, accepted = [sum(each[key] for each in rounds) for key in ("drafted", "accepted")]
            print(
                f"{how:8} {statistics.mean(speeds):6.0f} ± {statistics.stdev(speeds):.0f} tok/s,"
                f" {drafted} of {sum(each['n'] for each in rounds)} drafted, {accepted / max(drafted, 1):.3f} right,"
                f" text {' '.join(sorted({each['text'] for each in rounds}))}",
                flush=True,
            )
    finally:
        server.terminate()
        server.wait()


main()
