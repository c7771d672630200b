// Opens a page in Chromium without the network, types texts, and prints what it shows, and how wide.
//   node page.mjs PAGE CHROMIUM [SCREENSHOT] < a JSON list of questions
// PAGE is the directory of an export or the address of albert-serve; a question the texts to type, or
// {at, texts, press}, where `at` has what is in the page's address, and `press` a button's text. The runtime lies beside an exported page;
// with CDN=1 in the environment it comes from where page.json says.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { chromium } from "playwright-core";

const [where, executablePath, screenshot] = process.argv.slice(2);
const questions = JSON.parse(readFileSync(0, "utf8"));
const runtime = join(import.meta.dirname, "node_modules/onnxruntime-web/dist");
// All that docs/serving.md puts there.
const files = ["/ort/ort.wasm.bundle.min.mjs", "/ort/ort-wasm-simd-threaded.wasm"];
const types = { ".html": "text/html", ".css": "text/css", ".wasm": "application/wasm" };
const script = "text/javascript";

const isServed = where.startsWith("http");
const settings = isServed ? {} : JSON.parse(readFileSync(join(where, "page.json")));
const server = createServer((request, response) => {
  const path = request.url === "/" ? "/index.html" : request.url;
  const isRuntime = files.includes(path);
  let content;
  try {
    content = readFileSync(isRuntime ? join(runtime, path.slice(5)) : join(where, path));
  } catch {
    return response.writeHead(404).end();
  }
  if (path === "/page.json" && !process.env.CDN) {
    content = JSON.stringify({ ...JSON.parse(content), runtime: "ort/" });
  }
  response.writeHead(200, { "content-type": types[extname(path)] ?? script }).end(content);
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const origin = isServed ? where : `http://127.0.0.1:${server.address().port}/`;

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const viewport = { width: 720, height: 560 };
const context = await browser.newContext({ viewport, colorScheme: "light" });
const met = [];
await context.route("**", (route) => {
  if (route.request().url().startsWith(origin)) return route.continue();
  if (process.env.CDN && route.request().url().startsWith(settings.runtime)) {
    const path = join(runtime, route.request().url().slice(settings.runtime.length));
    return route.fulfill({ path, headers: { "access-control-allow-origin": "*" } });
  }
  met.push(`asked for ${route.request().url()}`);
  return route.abort();
});
const page = await context.newPage();
page.on("console", (message) => met.push(`${message.type()}: ${message.text()}`));
page.on("pageerror", (error) => met.push(String(error)));

const since = performance.now();
await page.goto(origin);
const fields = page.locator("#form textarea, #form input");
const answers = [];
const milliseconds = [];
for (const question of questions) {
  const { at, texts, press } = Array.isArray(question) ? { texts: question } : question;
  if (at) {
    await page.goto("about:blank");
    await page.goto(`${origin}#${new URLSearchParams(at)}`);
  }
  const began = answers.length ? performance.now() : since;
  if (texts) {
    // What was shown before goes, so that the next answer is the one waited for.
    for (const i of texts.keys()) await fields.nth(i).fill("");
    await page.waitForFunction(() => !document.querySelector("#answer").children.length);
    for (const [i, text] of texts.entries()) await fields.nth(i).fill(text);
  }
  if (press) await page.getByRole("button", { name: press }).click();
  await page.waitForSelector("#answer > *, #status.error", { timeout: 30_000 });
  milliseconds.push(Math.round(performance.now() - began));
  const marks = await page.locator("#answer mark").allInnerTexts();
  const chosen = await page.locator("#answer .chosen .name").allInnerTexts();
  const shares = await page.locator("#answer .share").allInnerTexts();
  const shown = await page.innerText("#answer");
  await page.evaluate(() => (document.querySelector("#shell").open = true));
  const widths = [];
  for (const width of [360, 1200]) {
    await page.setViewportSize({ width, height: 800 });
    widths.push(await page.evaluate(() => {
      const bars = [...document.querySelectorAll(".bar")];
      const shares = bars.map((bar) => bar.offsetWidth / bar.parentElement.offsetWidth);
      const { scrollWidth, clientWidth } = document.documentElement;
      return { bar: Math.min(1, ...shares), overflow: scrollWidth - clientWidth };
    }));
  }
  await page.evaluate(() => (document.querySelector("#shell").open = false));
  await page.setViewportSize(viewport);
  const status = await page.innerText("#status");
  const about = await page.innerText("#about");
  const typed = await fields.first().inputValue();
  answers.push({ about, typed, marks, chosen, shares, shown, status, widths });
}
const title = await page.title();
// Of the page's process, in MB.
const tools = await browser.newBrowserCDPSession();
const { processInfo } = await tools.send("SystemInfo.getProcessInfo");
const sizes = processInfo.filter(({ type }) => type === "renderer").map(({ id }) => {
  return readFileSync(`/proc/${id}/status`, "utf8").match(/VmRSS:\s+(\d+)/)[1] / 1e3;
});
const memory = Math.max(...sizes);
if (screenshot) {
  await page.locator("#title").click();
  await page.screenshot({ path: screenshot, fullPage: true });
}
await browser.close();
server.close();
process.stdout.write(JSON.stringify({ title, answers, milliseconds, memory, met }));
