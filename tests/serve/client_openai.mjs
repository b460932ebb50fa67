// SPDX-License-Identifier: Apache-2.0
// client_openai.mjs - the official OpenAI package, as its users call it.
import OpenAI from "openai";
import assert from "node:assert/strict";

const client = new OpenAI({ baseURL: process.env.URL + "/v1", apiKey: process.env.KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "What is 7 + 5?" }];

const models = await client.models.list();
const model = models.data[0].id;
assert.ok(model);

const whole = await client.chat.completions.create({ model, messages, temperature: 0, logprobs: true, top_logprobs: 2 });
assert.match(whole.choices[0].message.content, /12/);
assert.equal(whole.choices[0].finish_reason, "stop");
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
assert.equal(whole.choices[0].logprobs.content.length, whole.usage.completion_tokens);

const stream = await client.chat.completions.create({ model, messages, temperature: 0, stream: true, stream_options: { include_usage: true } });
let text = "", usage = null;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
assert.ok(usage.prompt_tokens_details.cached_tokens >= 0);

// A conversation goes on, and what was there before is not read again.
const next = await client.chat.completions.create({
  model, temperature: 0, messages: [...messages, whole.choices[0].message, { role: "user", content: "And 2 + 2?" }] });
assert.ok(next.usage.prompt_tokens_details.cached_tokens > 0);

const schema = { type: "object", properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer" } }, required: ["name", "age"], additionalProperties: false };
const cat = await client.chat.completions.create({
  model, messages: [{ role: "user", content: "Describe a cat." }], seed: 1, max_tokens: 200,
  response_format: { type: "json_schema", json_schema: { name: "cat", strict: true, schema } } });
assert.ok(Number.isInteger(JSON.parse(cat.choices[0].message.content).age));

if (process.env.TOOLS) {
  const tools = [{ type: "function", function: { name: "weather", parameters: {
    type: "object", properties: { town: { type: "string", maxLength: 12 } }, required: ["town"], additionalProperties: false } } }];
  const ask = { model, messages: [{ role: "user", content: "Weather in Ulm?" }], tools, tool_choice: "required", seed: 2, max_tokens: 200 };
  const called = await client.chat.completions.create(ask);
  assert.equal(called.choices[0].finish_reason, "tool_calls");
  const call = called.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, "weather");
  assert.equal(typeof JSON.parse(call.function.arguments).town, "string");
  const runner = client.chat.completions.stream({ ...ask });
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  const after = await client.chat.completions.create({
    model, tools, max_tokens: 5, messages: [...ask.messages, called.choices[0].message, { role: "tool", tool_call_id: call.id, content: "Rain." }] });
  assert.ok(after.usage.prompt_tokens > 20);
}

const completion = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 10, seed: 1 });
assert.equal(completion.usage.completion_tokens, 10);

await assert.rejects(client.chat.completions.create({ model, messages, temperature: "hot" }),
  e => e instanceof OpenAI.BadRequestError && e.param === "temperature" && e.status === 400);
await assert.rejects(client.chat.completions.create({ model, messages: [{ role: "user", content: "word ".repeat(20000) }] }),
  e => e instanceof OpenAI.BadRequestError && e.code === "context_length_exceeded");
await assert.rejects(new OpenAI({ baseURL: process.env.URL + "/v1", apiKey: "wrong", maxRetries: 0 }).models.list(),
  e => e instanceof OpenAI.AuthenticationError);
await assert.rejects(client.models.retrieve("nothing"), e => e instanceof OpenAI.NotFoundError);

// A client that leaves in the middle of a stream.
const long = await client.chat.completions.create({ model, messages: [{ role: "user", content: "Tell me a story." }], stream: true, max_tokens: 2000 });
for await (const chunk of long) {
  if (chunk.choices[0]?.delta?.content) { long.controller.abort(); break; }
}
