#!/usr/bin/env python3
"""Writes text to train on: what forge-mini says, sampled from its own probabilities.

Usage: text.py ROCMFORGE SECONDS OUT.npy

Starts `rocmforge serve` and asks it for texts of LENGTH tokens until the time is over. OUT.npy is an array of token ids, a
text in each row.
"""

import http.client
import json
import subprocess
import sys
import threading
import time

import numpy as np

LENGTH = 513
N_CLIENTS = 96
END_OF_TEXT, START_OF_TURN, END_OF_TURN = 0, 1, 2
# Every token counts as often as the model expects it.
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    binary, seconds, out = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    command = [binary, "serve", "--port", "0", "--json", "--ctx", "1024", "--max-seqs", "64"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    url = json.loads(server.stdout.readline())["url"]
    host, port = url.removeprefix("http://").rsplit(":", 1)
    until = time.monotonic() + seconds
    texts, errors = [], []

    def ask(client):
        connection = http.client.HTTPConnection(host, int(port), timeout=300)
        seed = client
        while time.monotonic() < until and not errors:
            text = [END_OF_TEXT]
            while len(text) < LENGTH:
                request = {"prompt": text, "n_predict": LENGTH - len(text), "return_tokens": True, "seed": seed, **SAMPLING}
                connection.request("POST", "/completion", json.dumps(request), {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                if response.status != 200:
                    errors.append(answer)
                    return
                text += answer["tokens"]
                if answer["stop_type"] == "eos":
                    # The token that ends an answer is not among its tokens.
                    in_turn = START_OF_TURN in answer["tokens"]
                    text.append(END_OF_TURN if in_turn else END_OF_TEXT)
                seed += N_CLIENTS
            texts.append(text)

    clients = [threading.Thread(target=ask, args=[client]) for client in range(N_CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    server.terminate()
    server.wait()
    if errors:
        raise SystemExit(f"the server answers {errors[0]}")
    np.save(out, np.array(texts, np.int16))
    print(f"{len(texts)} texts of {LENGTH} tokens in {seconds:.0f} s")


main()
