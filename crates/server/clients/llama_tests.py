"""Runs llama.cpp's own tests of its server against `rocmforge serve`. Usage: llama_tests.py ROCMFORGE LLAMA_CPP STORIES

LLAMA_CPP is a folder with llama.cpp's sources, STORIES the file stories260K.gguf. llama_failures.txt lists the tests that
fail, with the reasons. Another failure is one of this program, as is a test of the list that passes.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FILES = (
    "basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift embedding ignore_eos infill rerank "
    "security stream template tokenize"
).split()
HERE = Path(__file__).resolve().parent
# What needs the network, or images.
LEFT_OUT = "not test_anthropic_vision_base64 and not test_local_media_file"


def run(rocmforge, tests, stories, folder):
    """Returns the names of the tests that passed and that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server.py"),
        "PORT": str(port),
        "ROCMFORGE": rocmforge,
        "SHIM_DIR": folder,
        "STORIES": stories,
    }
    results = Path(folder) / "results.xml"
    files = [f"unit/test_{name}.py" for name in FILES]
    options = ["-q", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider", "-k", LEFT_OUT]
    command = [sys.executable, "-m", "pytest", *options, "-m", "not slow", f"--junitxml={results}", *files]
    with open(Path(folder) / "log", "wb") as log:
        subprocess.run(command, cwd=tests, env=env, stdout=log, check=False)
    passed, failed = set(), set()
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname').removeprefix('unit.test_')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is None:
            passed.add(name)
    return passed, failed


def expected():
    """Yields the patterns of the list as regular expressions, and whether what they match may pass."""
    by_chance = False
    for line in (HERE / "llama_failures.txt").read_text().splitlines():
        if line.startswith(" "):
            yield re.compile(".*".join(map(re.escape, line.strip().split("*"))), re.DOTALL), by_chance
        else:
            by_chance = line.startswith("By chance:")


rocmforge, llama_cpp, stories = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    passed, failed = run(rocmforge, Path(llama_cpp) / "tools/server/tests", stories, folder)
    log = (Path(folder) / "log").read_text()
wrong, listed = [], set()
for pattern, by_chance in expected():
    matching = {name for name in passed | failed if pattern.fullmatch(name)}
    listed |= matching
    if not matching:
        wrong.append(f"in the list, but there is no such test: {pattern.pattern}")
    if not by_chance:
        wrong += [f"passes, though it is in the list: {name}" for name in sorted(matching & passed)]
wrong += [f"fails: {name}" for name in sorted(failed - listed)]
if wrong:
    print(log, *wrong, sep="\n")
    sys.exit(1)
print(f"ok: llama.cpp's tests of its server: {len(passed)} pass, {len(failed)} fail as expected")
