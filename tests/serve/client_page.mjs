// SPDX-License-Identifier: Apache-2.0
// client_page.mjs - the chat page in headless Chromium: a conversation by keyboard, stop, reload, settings, dark and light.
import { chromium } from "playwright-core";
import assert from "node:assert/strict";

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1000, height: 760 }, colorScheme: "light" });
const problems = [], elsewhere = [];
page.on("pageerror", e => problems.push(String(e)));
page.on("request", r => { if (!r.url().startsWith(process.env.URL) && !r.url().startsWith("data:")) elsewhere.push(r.url()); });

async function settled() { await page.waitForFunction(() => !document.querySelector("#send").hidden, null, { timeout: 60000 }); }

await page.goto(process.env.URL + "/");
await page.waitForFunction(() => document.querySelector("#model").textContent.includes("API key"));
// Keyboard only: open the settings, go to their last field, type the key.
await page.keyboard.press("Shift+Tab");
assert.equal(await page.evaluate(() => document.activeElement.id), "toggle");
await page.keyboard.press("Enter");
assert.equal(await page.evaluate(() => document.activeElement.id), "system");
for (let i = 0; i < 10; i++) await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.id), "key");
await page.keyboard.type(process.env.KEY);
await page.keyboard.press("Tab");
await page.waitForFunction(() => document.querySelector("#model").textContent.includes("demo"));
await page.fill("#temperature", "0");
await page.keyboard.press("Tab");
await page.focus("#text");
await page.keyboard.type("What is 7 + 5?");
await page.keyboard.press("Enter");
await settled();
assert.match(await page.textContent(".turn.assistant"), /12/);
assert.match(await page.textContent(".turn.assistant .rate"), /tokens/);
await page.keyboard.type("Tell me a story about a cat.");
await page.keyboard.press("Enter");
await settled();
await page.screenshot({ path: "page-light.png" });

// Stop in the middle, by key.
await page.fill("#temperature", "1");
await page.fill("#seed", "7");
await page.fill("#max_tokens", "3000");
await page.focus("#text");
await page.keyboard.type("Tell me a very long story about <b>a dog</b>.");
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelectorAll(".turn.assistant")[2]?.textContent.length > 40);
await page.keyboard.press("Escape");
await settled();
const stopped = await page.textContent(".turn.assistant:last-child .rate");
const early = !/stopped/.test(stopped); // a short answer may have ended before
assert.equal(await page.evaluate(() => document.querySelectorAll("#talk b").length), 0);

// Reload: the conversation is still there, and the settings.
const before = await page.textContent("#talk");
await page.reload();
assert.equal(await page.evaluate(() => document.querySelectorAll(".turn").length), 6);
assert.equal(await page.inputValue("#seed"), "7");
assert.ok(before.startsWith("Thought"));
await page.emulateMedia({ colorScheme: "dark" });
await page.screenshot({ path: "page-dark.png" });
await page.setViewportSize({ width: 390, height: 760 });
await page.screenshot({ path: "page-narrow.png" });

// An error of the server is shown; New begins again.
await page.click("#toggle");
await page.fill("#key", "wrong");
await page.focus("#text");
await page.keyboard.type("Hello");
await page.keyboard.press("Enter");
await page.waitForSelector("[role=alert]");
assert.match(await page.textContent("[role=alert]"), /API key/);
await page.click("#new");
assert.equal(await page.evaluate(() => document.querySelectorAll(".turn").length), 0);
assert.ok(await page.isVisible("#empty"));

await browser.close();
assert.deepEqual(problems, []);
assert.deepEqual(elsewhere, []);
if (early) console.log("note: the answer ended before it could be stopped");
