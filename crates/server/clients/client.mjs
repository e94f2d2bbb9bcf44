// Talks to a running server through the client libraries of Node. Usage: node client.mjs URL
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const url = process.argv[2];
const model = "forge-mini";
const messages = [{ role: "user", content: "Hi" }];
const person = z.object({ age: z.number().int(), city: z.enum(["Paris", "Rome"]) });

async function withOpenAI() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const asked = { model, messages, temperature: 0, max_tokens: 16 };
  const whole = (await client.chat.completions.create(asked)).choices[0].message.content;
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(streamed, whole);
  const parsed = await client.chat.completions.parse({
    ...asked,
    max_tokens: 200,
    response_format: zodResponseFormat(person, "person"),
  });
  person.parse(parsed.choices[0].message.parsed);
  const response = await client.responses.create({ model, input: "Hi", temperature: 0, max_output_tokens: 16 });
  assert.equal(response.output_text, whole);
  const left = await client.chat.completions.create({ model, messages, max_tokens: 400, stream: true });
  for await (const _ of left) break;
  await assert.rejects(client.chat.completions.create({ model: "none", messages }), OpenAI.NotFoundError);
}

async function withAI() {
  const provider = createOpenAICompatible({
    name: "rocmforge",
    baseURL: `${url}/v1`,
    supportsStructuredOutputs: true,
  });
  const asked = { model: provider(model), prompt: "Hi", temperature: 0, maxOutputTokens: 200 };
  const whole = await generateText(asked);
  assert.ok(whole.text && whole.usage.outputTokens > 0);
  let streamed = "";
  for await (const text of streamText(asked).textStream) streamed += text;
  assert.equal(streamed, whole.text);
  person.parse((await generateObject({ ...asked, schema: person })).object);
  const weather = tool({ description: "Weather", inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }) });
  const called = await generateText({ ...asked, tools: { weather }, toolChoice: "required" });
  assert.equal(called.toolCalls[0].toolName, "weather");
}

for (const test of [withOpenAI, withAI]) {
  await test();
  console.log("ok:", test.name);
}
