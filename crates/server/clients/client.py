"""Talks to a running server through the client libraries that programs use. Usage: client.py URL"""

import asyncio
import os
import sys
from enum import Enum

# Before its import: it would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import instructor
import litellm
import ollama
import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv[1]
V1 = URL + "/v1"
MODEL = "forge-mini"
HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "max_tokens": 16}


class City(str, Enum):
    PARIS = "Paris"
    ROME = "Rome"


class Person(BaseModel):
    """A person."""

    age: int
    city: City


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": WEATHER}}


def with_openai():
    client = openai.OpenAI(base_url=V1, api_key="none")
    assert [model.id for model in client.models.list()] == [MODEL]
    whole = client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2, **GREEDY)
    text = whole.choices[0].message.content
    assert text and len(whole.choices[0].logprobs.content) >= whole.usage.completion_tokens - 1
    streamed, usage = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(model=MODEL, messages=HI, stream=True, stream_options=options, **GREEDY):
        usage = chunk.usage or usage
        streamed += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert streamed == text and usage == whole.usage
    assert client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5).choices[0].text
    for wrong, error in [({"model": "none"}, openai.NotFoundError), ({"n": 0}, openai.BadRequestError)]:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": HI, **wrong})
            raise AssertionError(wrong)
        except error:
            pass
    # What the client leaves is not sent.
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=HI, max_tokens=400, stream=True
    ) as response:
        next(response.iter_lines())
    parsed = client.chat.completions.parse(
        model=MODEL, messages=HI, response_format=Person, max_tokens=200, seed=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)
    called = client.chat.completions.create(
        model=MODEL, messages=HI, tools=[FUNCTION], tool_choice="required", max_tokens=200, seed=1
    )
    assert called.choices[0].finish_reason == "tool_calls"
    assert called.choices[0].message.tool_calls[0].function.name == "weather"


def with_openai_responses():
    client = openai.OpenAI(base_url=V1, api_key="none")
    asked = {"model": MODEL, "input": "Hi", "max_output_tokens": 16, "temperature": 0}
    whole = client.responses.create(**asked)
    assert whole.output_text and whole.status in ("completed", "incomplete")
    events = client.responses.create(stream=True, **asked)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == whole.output_text


async def ask_at_once():
    client = openai.AsyncOpenAI(base_url=V1, api_key="none")
    asked = [
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Count to {i}"}], max_tokens=20, seed=i
        )
        for i in range(50)
    ]
    assert all(answer.choices[0].message.content for answer in await asyncio.gather(*asked))
    stream = await client.chat.completions.create(model=MODEL, messages=HI, max_tokens=400, stream=True)
    async for _ in stream:
        break
    await stream.close()


def with_async_openai():
    asyncio.run(ask_at_once())


def with_anthropic():
    client = anthropic.Anthropic(base_url=URL, api_key="none")
    asked = {"model": MODEL, "max_tokens": 16, "messages": HI, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        assert stream.get_final_message().usage == whole.usage
    assert client.messages.count_tokens(model=MODEL, messages=HI).input_tokens == whole.usage.input_tokens
    weather = {"name": "weather", "description": "Weather", "input_schema": WEATHER}
    called = client.messages.create(
        model=MODEL, max_tokens=200, tools=[weather], tool_choice={"type": "any"}, messages=HI
    )
    assert called.stop_reason == "tool_use" and called.content[0].input["city"] in ("Paris", "Rome")
    try:
        client.messages.create(model="none", max_tokens=1, messages=HI)
        raise AssertionError("there is no such model")
    except anthropic.NotFoundError:
        pass


def with_ollama():
    client = ollama.Client(host=URL)
    assert [model.model for model in client.list().models] == [MODEL]
    asked = {"model": MODEL, "messages": HI, "options": {"temperature": 0, "num_predict": 16}}
    whole = client.chat(**asked).message.content
    assert "".join(part.message.content for part in client.chat(stream=True, **asked)) == whole
    assert client.generate(model=MODEL, prompt="Hi", options=asked["options"]).response
    assert "completion" in client.show(MODEL).capabilities


def with_litellm():
    asked = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": "none", "messages": HI, **GREEDY}
    whole = litellm.completion(**asked).choices[0].message.content
    chunks = litellm.completion(stream=True, **asked)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    forced = {"type": "function", "function": {"name": "weather"}}
    called = litellm.completion(**{**asked, "max_tokens": 200}, tools=[FUNCTION], tool_choice=forced)
    assert called.choices[0].message.tool_calls[0].function.name == "weather"


@tool
def weather(city: City) -> str:
    """Return the weather."""
    return f"Sun in {city}"


def with_langchain():
    model = ChatOpenAI(model=MODEL, base_url=V1, api_key="none", temperature=0, max_tokens=200)
    whole = model.invoke("Hi").content
    assert "".join(chunk.content for chunk in model.stream("Hi")) == whole
    assert model.bind_tools([weather], tool_choice="required").invoke("Hi").tool_calls[0]["name"] == "weather"
    assert isinstance(model.with_structured_output(Person).invoke("A person"), Person)


def with_instructor():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=V1, api_key="none"), mode=mode)
        person = client.chat.completions.create(
            model=MODEL, messages=HI, response_model=Person, max_tokens=200, seed=1, max_retries=0
        )
        assert isinstance(person, Person)


def with_pydantic_ai():
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=V1, api_key="none"))
    settings = {"temperature": 0, "max_tokens": 200}
    assert Agent(model, model_settings=settings).run_sync("Hi").output
    agent = Agent(model, output_type=Person, model_settings=settings)
    assert isinstance(agent.run_sync("A person").output, Person)


for test in [
    with_openai,
    with_openai_responses,
    with_async_openai,
    with_anthropic,
    with_ollama,
    with_litellm,
    with_langchain,
    with_instructor,
    with_pydantic_ai,
]:
    test()
    print("ok:", test.__name__, flush=True)
