"""template_released.py: prints what Jinja2 makes of the templates in a folder, as JSON on stdout.

Argument: a folder of `*.jinja`, such as models/templates of llama.cpp's source distribution. The templates themselves are
not printed, only a hash of each and of each rendering; a second argument, `text`, prints the renderings, too. Jinja2 is
set up as Hugging Face transformers sets it up in `apply_chat_template`.
"""
import datetime
import json
import pathlib
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime.fromtimestamp(1_721_966_706, datetime.timezone.utc)


def tool(name, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": f"About {name}: ü & <b>.", "parameters": parameters}}


TOOLS = [
    tool("get_weather", {"city": {"type": "string", "description": "City name"}, "days": {"type": "integer"}}, ["city"]),
    tool("search", {"query": {"type": "string"}, "kinds": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}}, []),
]
SYSTEM = {"role": "system", "content": "Be brief. é"}
USER = {"role": "user", "content": " Weather in Zürich? <b>\n"}


def call(arguments, name="get_weather", id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


ARGUMENTS = {"city": "Zürich", "days": 2, "deep": {"x": [1.5, None, True]}}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"temp\": 7}"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [call(ARGUMENTS)]}
ANSWER = {"role": "assistant", "content": "Seven degrees."}
THOUGHT = {"role": "assistant", "content": "Seven.", "reasoning_content": "It says 7.\nSo 7."}
CASES = {
    "user": {"messages": [USER]},
    "no_prompt": {"messages": [SYSTEM, USER, ANSWER], "add_generation_prompt": False},
    "system_turns": {"messages": [SYSTEM, USER, ANSWER, {"role": "user", "content": "And tomorrow?"}]},
    "tools_offered": {"messages": [SYSTEM, USER], "tools": TOOLS},
    "tool_result": {"messages": [SYSTEM, USER, CALLED, RESULT], "tools": TOOLS},
    "tool_result_text": {
        "messages": [USER, {**CALLED, "tool_calls": [call(json.dumps(ARGUMENTS))]}, RESULT],
        "tools": TOOLS,
    },
    "null_content": {"messages": [USER, {**CALLED, "content": None}, RESULT], "tools": TOOLS},
    "parallel": {
        "messages": [
            USER,
            {**CALLED, "content": "Let me look.", "tool_calls": [call(ARGUMENTS), call({}, "search", "call00002")]},
            RESULT,
            {**RESULT, "tool_call_id": "call00002", "name": "search", "content": "none"},
        ],
        "tools": TOOLS,
    },
    "after_tools": {
        "messages": [SYSTEM, USER, CALLED, RESULT, ANSWER, {"role": "user", "content": "Thanks"}],
        "tools": TOOLS,
    },
    "thinking_on": {"messages": [SYSTEM, USER], "variables": {"enable_thinking": True, "thinking": True}},
    "thinking_off": {"messages": [SYSTEM, USER], "variables": {"enable_thinking": False, "thinking": False}},
    "thoughts": {
        "messages": [USER, THOUGHT, {"role": "user", "content": "Sure?"}],
        "variables": {"enable_thinking": True, "thinking": True},
    },
    "thoughts_off": {
        "messages": [USER, THOUGHT, {"role": "user", "content": "Sure?"}],
        "variables": {"enable_thinking": False, "thinking": False},
    },
    "thoughts_and_call": {
        "messages": [USER, {**CALLED, "reasoning_content": "I must look.", "thinking": "I must look."}, RESULT],
        "tools": TOOLS,
        "variables": {"enable_thinking": True, "reasoning_effort": "high"},
    },
    "effort_low": {"messages": [SYSTEM, USER], "variables": {"reasoning_effort": "low"}},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]}]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, USER]},
    "two_users": {"messages": [USER, USER]},
    "assistant_last": {"messages": [USER, ANSWER]},
    "empty": {"messages": []},
    "odd_role": {"messages": [USER, {"role": "narrator", "content": "x"}]},
    "documents": {
        "messages": [USER],
        "variables": {"documents": [{"title": "T", "text": "Some text.", "doc_id": "1"}]},
    },
}


class Generation(Extension):
    """`{% generation %}`, as transformers has it: the block's text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


class Refused(jinja2.exceptions.TemplateError):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def fnv(text):
    value = 0xCBF29CE484222325
    for b in text.encode():
        value = (value ^ b) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    show = len(sys.argv) > 2
    templates = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        source = path.read_text()
        row = {"source": fnv(source), "cases": {}}
        for name, case in CASES.items():
            variables = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
            variables |= {key: value for key, value in case.items() if key != "variables"} | case.get("variables", {})
            try:
                text = env.from_string(source).render(**variables)
                result = ["text", fnv(text)] + [text] * show
            except Refused as error:
                result = ["refused", fnv(str(error))] + [str(error)] * show
            except Exception as error:
                result = ["error", type(error).__name__] + [str(error)] * show
            row["cases"][name] = result
        templates[path.stem] = row
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in templates.items())
    print('{"conversations": ' + json.dumps(CASES, ensure_ascii=False) + ',\n"templates": {\n' + rows + "\n}}")


main()
