"""template_snippets.py: prints what Jinja2 makes of small templates, as JSON on stdout.

Jinja2 is set up as Hugging Face transformers sets it up in `apply_chat_template`: the same environment, and `tools` and
`documents` are None if the caller gives none.
"""
import json

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOOL = {"type": "function", "function": {"name": "f", "description": "d"}}
VARIABLES = {
    "plain": {"messages": [{"role": "user", "content": "Hi"}]},
    "null": {"messages": [{"role": "assistant", "content": None}, {"role": "user"}]},
    "tools": {"messages": [{"role": "user", "content": " x "}], "tools": [TOOL], "documents": [{"text": "t"}]},
}
SNIPPETS = [
    # What is none and what is not defined.
    "{{ tools is defined }} {{ tools is none }} {{ documents is defined }} {{ documents is none }} {{ other is defined }}",
    "{% if tools is not none %}t{{ tools | length }}{% else %}no{% endif %}",
    "{% if tools is defined and tools is not none and tools | length > 0 %}t{% endif %}|{{ tools }}",
    "{{ tools | length }}",
    "{% if tools is iterable and tools | length > 0 %}t{% else %}no{% endif %}",
    "{{ tools is iterable }} {{ tools is sequence }} {{ tools is mapping }} {{ tools is string }} {{ 'x' is iterable }} {{ 5 is iterable }}",
    "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools is none }}",
    "{% set tools = tools or [] %}{{ tools | length }}",
    "{{ tools | default('d') }} {{ tools | default('d', true) }}",
    "{{ documents | tojson }} {{ tools | tojson }}",
    # Content that is null or missing.
    "{{ messages[0].content }}|{{ messages[0]['content'] }}",
    "{{ messages[0].content is none }} {{ messages[0].content is string }} {{ messages[0].content is defined }}",
    "{{ messages[0].content | trim }}|",
    "{{ messages[0].content | string }}|{{ messages[0].content | upper }}|{{ messages[0].content | tojson }}",
    "{{ 'a' ~ messages[0].content }}",
    "{{ 'a' + messages[0].content }}",
    "{{ messages[0].content | default('', true) }}|",
    "{{ messages[0].content or 'x' }}",
    "{{ messages[0].content.strip() }}",
    "{{ messages[0].content | replace('o', '0') }}|{{ messages[0].content | lower | title | capitalize }}",
    "{{ messages[-1].content }}|{{ messages[-1].content is defined }}|{{ messages[-1].content | trim }}|",
    "{{ messages[0].content | length }}",
    "{{ 'i' in messages[0].content }}",
    "{{ messages[0].content[0] }}",
    "{% for c in messages[0].content %}{{ c }}{% endfor %}|",
    # Filters and methods.
    "{{ 5 | safe }} {{ none | safe }} {{ '<a>' | safe }} {{ '<a>' | safe | e }} {{ 1.5 | safe }}",
    "{{ '<a href=\"/x\">&\\'' | e }} {{ '<a>' | e | e }} {{ 5 | e }} {{ none | escape }}",
    "{{ {'a': '<\"'} | tojson | e }} {{ {'a': '<'} | tojson | safe }}",
    "{{ 'zz' | int }} {{ 'zz' | int(7) }} {{ none | int }} {{ [] | int }} {{ '0x1f' | int(0, 16) }} {{ '3.9' | int }} {{ 'zz' | int(default=3) }}",
    "{{ 'zz' | float }} {{ 'zz' | float(2) }} {{ none | float }} {{ '1e3' | float }} {{ '3' | float }} {{ 'x' | float(default=1.5) }}",
    "{{ 'aaa' | replace('a', 'b', 2) }} {{ 'aaa' | replace('a', 'b', -1) }} {{ 'aaa' | replace('a', 'b', 0) }} {{ 'aaa' | replace('a', 'b', count=1) }} {{ 'ab' | replace('', '-') }}",
    "{{ 'aaa'.replace('a', 'b', 2) }} {{ 'aaa'.replace('a', 'b', -1) }} {{ 1234 | replace(2, 'x') }}",
    "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ '+7'.zfill(2) }} {{ 'abc'.zfill(2) }} {{ ''.zfill(2) }} {{ 'é'.zfill(3) }} {{ '--1'.zfill(5) }}",
    "{{ ' x ' | trim }}| {{ 'xax' | trim('x') }} {{ 5 | trim }} {{ 1e20 | trim }}",
    # Numbers.
    "{{ 1e20 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789012345678.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ -1e300 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 2.0 ** 70 }}",
    "{{ 1e20 | string }} {{ 1e-7 | string | length }} {{ 1e20 | tojson }} {{ 1e999 }} {{ -1e999 }}",
    "{{ [1e20, 1.5, 1e-7, 2] }} {{ {'a': 1e16, 'b': ['x', none, true, 1e999]} }} {{ [[], [1e20, 'it\\'s', \"q\\\"\"], {}] | string }}",
    "{{ (1e20,) }} {{ (1e20, 2) }} {{ {1.5: 1e-5} }} {{ [1e20] | safe }} {{ [1e20] | trim }}",
    # Slices that go backwards.
    "{% for x in [][::-1] %}x{% endfor %}{{ ''[::-1] }}|{{ [1, 2, 3][::-1] | list }}{{ 'abc'[::-1] }}{{ 'abc'[0:2:-1] }}|{{ [1, 2][0:5:-1] | list }}",
    "{{ [1, 2, 3, 4][3:0:-1] | list }}{{ [1, 2, 3, 4][::-2] | list }}{{ 'abcdef'[5:2:-1] }}{{ 'abcdef'[-2:-5:-1] }}{{ 'abc'[9:-9:-1] }}",
]


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
rows = []
for source in SNIPPETS:
    for variables in VARIABLES.values():
        row = {"source": source, **variables}
        try:
            row["output"] = env.from_string(source).render(**{"tools": None, "documents": None, **variables})
        except Exception as error:
            row["error"] = type(error).__name__
        rows.append(row)
print("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]")
