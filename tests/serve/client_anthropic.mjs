// SPDX-License-Identifier: Apache-2.0
// client_anthropic.mjs - the official Anthropic package, as its users call it.
import Anthropic from "@anthropic-ai/sdk";
import assert from "node:assert/strict";

const client = new Anthropic({ baseURL: process.env.URL, apiKey: process.env.KEY, maxRetries: 0 });
const model = "demo", messages = [{ role: "user", content: "What is 7 + 5?" }];

const whole = await client.messages.create({ model, max_tokens: 50, messages, temperature: 0 });
assert.equal(whole.role, "assistant");
assert.match(whole.content[0].text, /12/);
assert.equal(whole.stop_reason, "end_turn");
assert.ok(whole.usage.output_tokens > 0);

let text = "";
const stream = client.messages.stream({ model, max_tokens: 50, messages, temperature: 0 }).on("text", t => { text += t; });
const final = await stream.finalMessage();
assert.equal(text, whole.content[0].text);
assert.equal(final.content[0].text, whole.content[0].text);
assert.equal(final.stop_reason, "end_turn");
assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
const next = await client.messages.create({ model, max_tokens: 20, temperature: 0, messages: [...messages, { role: "assistant", content: whole.content }, { role: "user", content: "And 2 + 2?" }] });
assert.ok(next.usage.cache_read_input_tokens > 0);

const stopped = await client.messages.create({ model, max_tokens: 50, messages, temperature: 0, stop_sequences: ["is"], system: "Be kind." });
assert.ok(["stop_sequence", "end_turn"].includes(stopped.stop_reason));
const cut = await client.messages.create({ model, max_tokens: 2, messages });
assert.equal(cut.stop_reason, "max_tokens");
const count = await client.messages.countTokens({ model, messages });
assert.equal(count.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);

if (process.env.TOOLS) {
  const tools = [{ name: "weather", description: "Weather of a town", input_schema: { type: "object", properties: { town: { type: "string", maxLength: 12 } }, required: ["town"] } }];
  const ask = { model, max_tokens: 200, tools, tool_choice: { type: "any" }, messages: [{ role: "user", content: "Weather in Ulm?" }], temperature: 0 };
  const called = await client.messages.create(ask);
  const use = called.content.find(b => b.type === "tool_use");
  assert.equal(called.stop_reason, "tool_use");
  assert.equal(typeof use.input.town, "string");
  const streamed = await client.messages.stream(ask).finalMessage();
  assert.deepEqual(streamed.content.find(b => b.type === "tool_use").input, use.input);
  await client.messages.create({ model, max_tokens: 5, tools, messages: [...ask.messages, { role: "assistant", content: called.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "Rain." }] }] });
}

await assert.rejects(client.messages.create({ model, max_tokens: "many", messages }), e => e instanceof Anthropic.BadRequestError && /max_tokens/.test(e.message));
await assert.rejects(new Anthropic({ baseURL: process.env.URL, apiKey: "wrong", maxRetries: 0 }).messages.create({ model, max_tokens: 5, messages }),
  e => e instanceof Anthropic.AuthenticationError);
