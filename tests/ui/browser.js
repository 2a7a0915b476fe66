// Chromium for the flows: pages whose errors count, and small helpers.
//
// Not here: the flows themselves (flows.js, real.js, pictures.js).
"use strict";
const assert = require("node:assert/strict");
const { chromium } = require("playwright-core");

// Requests that flows mean to fail: the browser writes a line for each.
const EXPECTED = /status of (401|403|404|409|412|422)/;
const faults = [];
// Ends the process if no page is closed for long.
let standstill;

// Runs `body` with a page whose errors count, and closes it.
async function withPage(browser, options, body) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  page.on("console", (message) => {
    const isBad = ["error", "warning"].includes(message.type());
    if (isBad && !EXPECTED.test(message.text())) faults.push(`${page.url()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`${page.url()}: ${error}`));
  page.on("dialog", (dialog) => faults.push(`${page.url()}: dialog ${dialog.message()}`));
  try {
    return await body(page);
  } catch (error) {
    const alerts = await page.getByRole("alert").allInnerTexts().catch(() => []);
    faults.push(`at ${page.url()}: ${alerts.join(" ")} ${error.stack}`);
  } finally {
    await context.close();
    standstill.refresh();
  }
}

const flash = (page) => page.locator(".flash").innerText();
const button = (page, name) => page.getByRole("button", { name, exact: true });

// Saves the limit's form on `page` with another policy, as a second browser would. A second page
// would do too, but Chromium sometimes stands still with two.
async function saveElsewhere(page, policy) {
  const token = await page.getByLabel("Policy token").getAttribute("name");
  const [action, pairs] = await button(page, "Save").evaluate((save) => [
    save.formAction || save.form.action,
    [...new FormData(save.form, save)],
  ]);
  const form = { ...Object.fromEntries(pairs), [token]: policy };
  const sent = await page.context().request.post(action, { form });
  assert.ok(sent.ok(), `${action}: ${sent.status()}`);
}

// Logs in at the server at `site`.
async function login(page, site, token) {
  await page.goto(`${site}/ui/login`, { waitUntil: "domcontentloaded" });
  await page.getByLabel("Token").fill(token);
  await button(page, "Log in").click();
  await says(page, "Overview");
}

async function says(page, text) {
  const shown = await page.locator("main").innerText();
  assert.ok(shown.includes(text), `${page.url()} does not say ${text}:\n${shown}`);
}

// Runs `body` with a browser; fails if a page had an error, or if none is closed for `seconds`.
async function run(seconds, body) {
  const late = () => {
    console.error("the flows stand still");
    process.exit(1);
  };
  standstill = setTimeout(late, seconds * 1000).unref();
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  try {
    const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
    try {
      await body(browser);
    } finally {
      await browser.close();
    }
    assert.deepEqual(faults, [], faults.join("\n"));
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  }
}

module.exports = { button, faults, flash, login, run, saveElsewhere, says, withPage };
