// The pages of a real server in Chromium: an operator's flows during traffic.
//
// Run by tests/api/pages.rs with the server's address and the tokens of an admin, an editor, a
// member of the support team and a viewer. The test has put the limits `login`, `api-key` and
// `llm-tokens` and sends traffic. Not here: a host that answers as the test wants (flows.js).
"use strict";
const assert = require("node:assert/strict");
const browsing = require("./browser.js");
const { button, flash, run, saveElsewhere, says, withPage } = browsing;

const [site, ...tokens] = process.argv.slice(2);
const [admin, editor, support, viewer] = tokens;
const MARKUP = "login:<script>alert(1)</script>";

async function goto(page, path) {
  return page.goto(site + path, { waitUntil: "domcontentloaded" });
}

const login = (page, token) => browsing.login(page, site, token);

// Loads a page again until it says `text`, or does not if `isThere` is false.
async function until(page, path, text, isThere = true) {
  for (let attempt = 0; attempt < 100; attempt++) {
    await goto(page, path);
    if ((await page.locator("main").innerText()).includes(text) === isThere) return;
    await page.waitForTimeout(100);
  }
  assert.fail(`${path} ${isThere ? "never says" : "goes on to say"} ${text}`);
}

const flows = {
  async login(page) {
    await goto(page, "/ui/audit");
    assert.equal(new URL(page.url()).pathname, "/ui/login");
    await page.getByLabel("Token").fill("tg_wrong");
    await button(page, "Log in").click();
    assert.equal(await page.getByLabel("Token").getAttribute("aria-invalid"), "true");
    await page.getByLabel("Token").fill(admin);
    await button(page, "Log in").click();
    assert.equal(new URL(page.url()).pathname, "/ui/audit");
    await login(page, admin);
    await page.getByText("ada · admin").waitFor();
    await says(page, "No fault is known.");
    await button(page, "Log out").click();
    await goto(page, "/ui/limits");
    assert.equal(new URL(page.url()).pathname, "/ui/login");
  },

  async createAndEdit(page) {
    await login(page, editor);
    await goto(page, "/ui/limit/new");
    await page.getByLabel("Name").fill("checkout");
    await page.getByLabel("Pattern").fill("checkout:{user}");
    await page.getByLabel("Policy token").fill("fixed:0/m");
    await button(page, "Save").click();
    await page.getByRole("alert").waitFor();
    await page.getByLabel("Policy token").fill("sliding:30/m,slices=6");
    await button(page, "Save").click();
    assert.match(await flash(page), /saved/);
    await page.getByLabel("Count", { exact: true }).fill("40");
    await page.getByLabel("Owner").fill("team-shop");
    await page.getByLabel("Reason of the change").fill("christmas");
    await button(page, "Save").click();
    assert.match(await flash(page), /saved/);
    await says(page, "sliding:40/m,slices=6");
    await says(page, "christmas");
    await goto(page, "/ui/limit?name=checkout&keys=checkout:a%0Alogin:a%0Aother");
    await says(page, "✓ checkout");
    await says(page, "→ login");
    await says(page, "○ none");
  },

  async aFormAfterTheSessionHasEnded(page) {
    await login(page, editor);
    await goto(page, "/ui/limit?name=checkout");
    await page.getByLabel("Policy token").fill("sliding:45/m");
    await page.context().clearCookies();
    await button(page, "Save").click();
    await says(page, "Your session has ended");
    const other = await page.context().newPage();
    await login(other, editor);
    await other.close();
    await page.reload();
    assert.match(await flash(page), /saved/);
    await says(page, "sliding:45/m");
  },

  async conflict(page) {
    await login(page, editor);
    await goto(page, "/ui/limit?name=checkout");
    await saveElsewhere(page, "sliding:50/m");
    await page.getByLabel("Policy token").fill("sliding:60/m");
    await button(page, "Save").click();
    await says(page, "412");
    await says(page, "sliding:50/m");
    assert.ok((await page.getByLabel("Your text").inputValue()).includes("sliding:60/m"));
    await page.getByRole("button", { name: "Replace version" }).click();
    assert.match(await flash(page), /saved/);
    await says(page, "sliding:60/m");
  },

  async try(page) {
    await login(page, editor);
    await goto(page, "/ui/limit?name=login");
    await page.getByLabel("Policy token").fill("fixed:1/d");
    await button(page, "Try on the last hour").click();
    await says(page, "under this text.");
    await says(page, "Newly denied");
    assert.equal(await page.getByLabel("Policy token").inputValue(), "fixed:1/d");
    await goto(page, "/ui/limit?name=login");
    assert.notEqual(await page.getByLabel("Policy token").inputValue(), "fixed:1/d");
  },

  async shadowAndEnforce(page) {
    await login(page, editor);
    await goto(page, "/ui/limit?name=login");
    await button(page, "◐ Only shadow").click();
    assert.match(await flash(page), /refuses nothing/);
    await says(page, "◐ shadow");
    await until(page, "/ui/hot?what=shadow", "login:");
    await goto(page, "/ui/limit?name=login");
    await button(page, "● Enforce now").click();
    assert.match(await flash(page), /refuses now/);
    await says(page, "● enforced");
  },

  async revertAndRemove(page) {
    await login(page, editor);
    await goto(page, "/ui/limit?name=checkout");
    await page.getByRole("button", { name: /^Revert to/ }).last().click();
    await says(page, "sliding:30/m,slices=6");
    await button(page, "Revert the limit").click();
    assert.match(await flash(page), /old text/);
    await says(page, "sliding:30/m,slices=6");
    await button(page, "Remove…").click();
    await says(page, "The limit checkout (checkout:{user}) stops");
    await button(page, "Remove the limit").click();
    assert.match(await flash(page), /removed/);
  },

  async severalPolicies(page) {
    await login(page, editor);
    await goto(page, "/ui/limit/new");
    await page.getByLabel("Name").fill("sms");
    await page.getByLabel("Pattern").fill("sms:{phone}");
    const token = page.getByLabel("Policy token");
    await token.fill("fixed:2/m;fixed:0/h");
    await button(page, "Save").click();
    await page.getByRole("alert").waitFor();
    await token.fill("fixed:2/m;fixed:9/h");
    await button(page, "Save").click();
    assert.match(await flash(page), /saved/);
    // A change of another field keeps the list, and no field of one policy is filled in.
    assert.equal(await token.inputValue(), "fixed:2/m; fixed:9/h");
    assert.equal(await page.getByLabel("Algorithm").inputValue(), "");
    await page.getByLabel("Owner").fill("team-sms");
    await button(page, "Save").click();
    assert.match(await flash(page), /saved/);
    assert.equal(await token.inputValue(), "fixed:2/m; fixed:9/h");
    await button(page, "◐ Only shadow").click();
    await says(page, "◐ shadow");
    assert.equal(await token.inputValue(), "fixed:2/m; fixed:9/h");
    await button(page, "● Enforce now").click();
    await says(page, "● enforced");
    // The page of a key has a row for each policy.
    await goto(page, "/ui/key?key=sms:1");
    for (const policy of ["fixed:2/m", "fixed:9/h"]) {
      assert.equal(await page.getByRole("cell", { name: policy, exact: true }).count(), 1, policy);
    }
    await goto(page, "/ui/limit?name=sms");
    await button(page, "Remove…").click();
    await button(page, "Remove the limit").click();
    assert.match(await flash(page), /removed/);
  },

  async block(page) {
    await login(page, support);
    await goto(page, "/ui/key?key=login:alice");
    await page.getByLabel("For", { exact: true }).fill("3s");
    await page.getByLabel("Note").fill(MARKUP);
    await button(page, "✕ Block").click();
    assert.match(await flash(page), /in force/);
    await says(page, "login:alice (api)");
    await says(page, "✕ denied");
    await goto(page, "/ui/overrides?q=alice");
    await says(page, MARKUP);
    await until(page, "/ui/key?key=login:alice", "login:alice (api)", false);
    await says(page, "✓ allowed");
  },

  async giveBackAndReset(page) {
    await login(page, support);
    await goto(page, "/ui/key?key=login:bob");
    await page.getByLabel("Units").fill("2");
    await button(page, "Give back").click();
    assert.match(await flash(page), /given back/);
    await button(page, "Reset the key…").click();
    await says(page, "forgets what login:bob has used");
    await button(page, "Reset the key").click();
    assert.match(await flash(page), /as good as new/);
    await says(page, "✓ allowed");
  },

  async hotKeyToBlock(page) {
    await login(page, support);
    await until(page, "/ui/hot?what=denied", "login:mallory");
    await page.getByRole("link", { name: "login:mallory" }).click();
    await button(page, "✕ Block").click();
    assert.match(await flash(page), /in force/);
    await button(page, "Remove the override…").click();
    await button(page, "Remove the override").click();
    assert.match(await flash(page), /removed/);
  },

  async tail(page) {
    await login(page, viewer);
    await goto(page, "/ui/tail");
    await page.getByText("live: ").waitFor();
    await page.locator("[data-tail] tr", { hasText: "login:mallory" }).first().waitFor();
    await page.locator("[data-tail] tr", { hasText: MARKUP }).first().waitFor();
    await button(page, "Pause").click();
    await page.getByRole("button", { name: "Go on" }).waitFor();
    await page.getByLabel("Key begins with").fill("none:");
    await button(page, "Filter").click();
    await page.waitForTimeout(500);
    assert.equal(await page.locator("[data-tail] tr").count(), 0);
  },

  async live(page) {
    await login(page, viewer);
    await page.getByText("live: ").waitFor();
    const requests = page.locator("[data-figure=requests]");
    await page.waitForFunction((node) => node.textContent !== "0", await requests.elementHandle());
  },

  async wrongRole(page) {
    await login(page, viewer);
    await goto(page, "/ui/limit?name=login");
    assert.equal(await button(page, "Save").count(), 0);
    await goto(page, "/ui/key?key=login:alice");
    assert.equal(await button(page, "✕ Block").count(), 0);
    assert.equal(await page.getByRole("link", { name: "Audit" }).count(), 0);
    assert.equal((await goto(page, "/ui/audit")).status(), 403);
    await says(page, "Your token does not allow you");
  },

  async markup(page) {
    await login(page, viewer);
    await until(page, "/ui/hot?what=denied", MARKUP);
    for (const path of ["/ui/hot?what=denied", "/ui/tail", `/ui/key?key=${encodeURIComponent(MARKUP)}`]) {
      await goto(page, path);
      await page.getByText(MARKUP).first().waitFor();
      assert.equal(await page.locator("main script").count(), 0, path);
    }
  },

  async audit(page) {
    await login(page, admin);
    await goto(page, "/ui/audit");
    for (const text of ["eve", "sue", "checkout", "login:mallory", "expiry"]) await says(page, text);
    await goto(page, "/ui/config");
    await says(page, "limits_store");
  },
};

const WITHOUT_SCRIPTS = [
  "createAndEdit", "aFormAfterTheSessionHasEnded", "conflict", "shadowAndEnforce",
  "revertAndRemove", "severalPolicies",
];

run(100, async (browser) => {
  for (const name of WITHOUT_SCRIPTS) {
    await withPage(browser, { javaScriptEnabled: false }, flows[name]);
    console.log(`ok ${name} without JavaScript`);
  }
  for (const [name, flow] of Object.entries(flows)) {
    await withPage(browser, {}, flow);
    console.log(`ok ${name}`);
  }
});
