// node server_page.mjs CHROMIUM ADDRESS: opens the page of albert-serve on each line of standard input,
// an object of a model and texts, types the last one anew, and prints what the page then shows.
import { chromium } from "playwright-core";
import { readFileSync } from "node:fs";

const [executablePath, address] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
const problems = [];
page.on("pageerror", (error) => problems.push(error.message));
page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
page.on("request", (request) => request.url().startsWith(address) || problems.push(request.url()));
for (const line of readFileSync(0, "utf8").trim().split("\n")) {
  const { type, ...wanted } = JSON.parse(line);
  await page.goto("about:blank");
  await page.goto(`${address}/#${new URLSearchParams(wanted)}`);
  await page.waitForSelector("body[data-ready]");
  for (const [id, text] of Object.entries(type)) {
    const answered = page.waitForResponse((response) => response.url().endsWith(":predict"));
    await page.fill(`#${id}`, text);
    await answered;
  }
  await page.waitForTimeout(200);
  const found = await page.locator("#answer").innerText();
  const marks = await page.locator("#answer mark").allInnerTexts();
  const bars = await page.locator("#answer .row").count();
  console.log(JSON.stringify({ model: wanted.model, found, marks, bars, problems }));
}
await browser.close();
