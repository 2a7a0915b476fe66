// The pages in Chromium: an operator's flows, with and without JavaScript, and accessibility by axe.
//
// Run by server/http/tests/ui.rs with the addresses of two servers, one without tokens and one with,
// and a token of an admin and of a viewer. Not here: a real server (real.js), pictures (pictures.js).
"use strict";
const assert = require("node:assert/strict");
const { AxeBuilder } = require("@axe-core/playwright");
const { button, faults, flash, login, run, saveElsewhere, says, withPage } = require("./browser.js");

const [free, guarded, adminToken, viewerToken] = process.argv.slice(2);
const SCREENS = [
  "/ui/", "/ui/limits", "/ui/limit?name=login&keys=login:a%0Aother", "/ui/limit?name=api",
  "/ui/limit/new", "/ui/overrides", "/ui/key?key=login:alice", "/ui/hot?what=denied",
  "/ui/cluster", "/ui/tail", "/ui/audit", "/ui/config", "/ui/login", "/ui/none",
];
const MARKUP = "login:<script>alert(1)</script>";

async function goto(page, path, site = free) {
  return page.goto(site + path, { waitUntil: "domcontentloaded" });
}

const flows = {
  async login(page) {
    await goto(page, "/ui/limits", guarded);
    assert.equal(new URL(page.url()).pathname, "/ui/login");
    await page.getByLabel("Token").fill("tg_wrong");
    await button(page, "Log in").click();
    assert.equal(await page.getByLabel("Token").getAttribute("aria-invalid"), "true");
    await page.getByLabel("Token").fill(adminToken);
    await button(page, "Log in").click();
    assert.equal(new URL(page.url()).pathname, "/ui/limits");
    await page.getByText("alice · admin").waitFor();
    await button(page, "Log out").click();
    await goto(page, "/ui/audit", guarded);
    assert.equal(new URL(page.url()).pathname, "/ui/login");
  },

  async create(page) {
    await goto(page, "/ui/limits");
    await page.getByRole("link", { name: "New limit" }).click();
    await page.getByLabel("Name").fill("checkout");
    await page.getByLabel("Pattern").fill("checkout:{user}");
    await page.getByLabel("Policy token").fill("nonsense");
    await button(page, "Save").click();
    await says(page, "bad policy");
    await page.getByLabel("Policy token").fill("sliding:30/m,slices=6");
    await button(page, "Save").click();
    assert.match(await flash(page), /saved/);
    await says(page, "checkout:{user}");
  },

  async edit(page) {
    await goto(page, "/ui/limit?name=checkout");
    await page.getByLabel("Count", { exact: true }).fill("40");
    await page.getByLabel("Owner").fill("team-a");
    await button(page, "Save").click();
    assert.match(await flash(page), /saved/);
    const token = await page.getByLabel("Policy token").inputValue();
    assert.equal(token, "sliding:40/m,slices=6");
    await page.getByLabel("Algorithm").selectOption("bucket");
    assert.ok(await page.locator("[name='p.capacity']").isVisible());
    assert.ok(!await page.locator("[name='p.slices']").isVisible());
  },

  async conflict(page) {
    await goto(page, "/ui/limit?name=checkout");
    await saveElsewhere(page, "sliding:50/m");
    await page.getByLabel("Policy token").fill("sliding:60/m");
    await button(page, "Save").click();
    await says(page, "412");
    await says(page, "sliding:50/m");
    const yours = page.getByLabel("Your text");
    assert.ok((await yours.inputValue()).includes("sliding:60/m"));
    await page.getByRole("button", { name: "Replace version" }).click();
    assert.match(await flash(page), /saved/);
    await says(page, "sliding:60/m");
  },

  async try(page) {
    await goto(page, "/ui/limit?name=checkout");
    await page.getByLabel("Policy token").fill("sliding:10/m");
    await button(page, "Try on the last hour").click();
    await says(page, "30.0 % ± 2.0 %");
    await says(page, MARKUP);
    assert.equal(await page.getByLabel("Policy token").inputValue(), "sliding:10/m");
  },

  async shadow(page) {
    await goto(page, "/ui/limit?name=checkout");
    await button(page, "◐ Only shadow").click();
    assert.match(await flash(page), /refuses nothing/);
    await says(page, "◐ shadow");
  },

  async enforce(page) {
    await goto(page, "/ui/limit?name=checkout");
    await button(page, "● Enforce now").click();
    assert.match(await flash(page), /refuses now/);
    await says(page, "● enforced");
  },

  async revert(page) {
    await goto(page, "/ui/limit?name=login");
    await button(page, "Revert to 1…").click();
    await says(page, "policy = \"fixed:1/m\"");
    await button(page, "Revert the limit").click();
    assert.match(await flash(page), /old text/);
    await says(page, "fixed:1/m");
  },

  async block(page) {
    await goto(page, "/ui/key?key=login:alice");
    await page.getByLabel("For", { exact: true }).fill("5s");
    await button(page, "✕ Block").click();
    assert.match(await flash(page), /in force/);
    await says(page, "login:alice (api)");
    await page.waitForTimeout(5200);
    await goto(page, "/ui/key?key=login:alice");
    assert.ok(!(await page.locator("main").innerText()).includes("login:alice (api)"));
  },

  async reset(page) {
    await goto(page, "/ui/key?key=login:alice");
    await page.getByLabel("Units").fill("2");
    await button(page, "Give back").click();
    assert.match(await flash(page), /given back/);
    await button(page, "Reset the key…").click();
    await says(page, "forgets what login:alice has used");
    await button(page, "Reset the key").click();
    assert.match(await flash(page), /as good as new/);
  },

  async hotKeyToBlock(page) {
    await goto(page, "/ui/hot?what=denied");
    await page.getByRole("link", { name: "login:alice" }).click();
    await button(page, "✕ Block").click();
    assert.match(await flash(page), /in force/);
    await button(page, "Remove the override…").click();
    await button(page, "Remove the override").click();
    assert.match(await flash(page), /removed/);
  },

  async drain(page) {
    await goto(page, "/ui/cluster");
    await button(page, "Drain n2").click();
    await page.getByLabel("Type n2 to confirm").fill("n1");
    await button(page, "Drain the node").click();
    await says(page, "The name that you typed is another one.");
    await page.getByLabel("Type n2 to confirm").fill("n2");
    await button(page, "Drain the node").click();
    assert.match(await flash(page), /gives its copies away/);
  },

  async tail(page) {
    await goto(page, "/ui/tail");
    await page.getByText("live: ").waitFor();
    await page.getByText(MARKUP).waitFor();
    await button(page, "Pause").click();
    await page.getByRole("button", { name: "Go on" }).waitFor();
    await page.getByLabel("Key begins with").fill("none:");
    await button(page, "Filter").click();
    await page.waitForTimeout(500);
    assert.equal(await page.locator("[data-tail] tr").count(), 0);
  },

  async live(page) {
    await goto(page, "/ui/");
    await page.getByText("live: 1,840 requests a second").waitFor();
    assert.equal(await page.locator("[data-figure=p99]").innerText(), "90 µs");
  },

  async fileLimit(page) {
    await goto(page, "/ui/limit?name=api");
    await says(page, "Managed by the file limits.toml");
    assert.equal(await button(page, "Save").count(), 0);
    await button(page, "Adopt…").click();
    await says(page, "The API decides about the limit api");
    await page.getByRole("link", { name: "Cancel" }).click();
  },

  async wrongRole(page) {
    await login(page, guarded, viewerToken);
    await goto(page, "/ui/limit?name=login", guarded);
    assert.equal(await button(page, "Save").count(), 0);
    assert.equal(await page.getByRole("link", { name: "Audit" }).count(), 0);
    assert.equal((await goto(page, "/ui/audit", guarded)).status(), 403);
    await says(page, "Your token does not allow you");
  },

  async markup(page) {
    for (const path of ["/ui/hot", "/ui/overrides", "/ui/tail", `/ui/key?key=${encodeURIComponent(MARKUP)}`]) {
      await goto(page, path);
      await page.getByText(MARKUP).first().waitFor();
      assert.equal(await page.locator("main script").count(), 0, path);
    }
  },

  async theme(page) {
    await goto(page, "/ui/");
    await button(page, "Dark theme").click();
    await goto(page, "/ui/limits");
    assert.equal(await page.locator("html").getAttribute("data-theme"), "dark");
    await button(page, "Light theme").waitFor();
  },

  async remove(page) {
    await goto(page, "/ui/limit?name=checkout");
    await button(page, "Remove…").click();
    await says(page, "The limit checkout (checkout:{user}) stops");
    await button(page, "Remove the limit").click();
    assert.match(await flash(page), /removed/);
  },

  async keyboard(page) {
    await goto(page, "/ui/");
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  },
};

const WITHOUT_SCRIPTS = ["login", "create", "edit", "conflict", "try", "shadow", "enforce", "revert"];

// Axe opens no page of its own in its legacy mode; a screen that it does not finish is opened again.
async function violationsOf(page, path) {
  for (let attempt = 1; ; attempt++) {
    await goto(page, path);
    const late = new Promise((_, refuse) =>
      setTimeout(refuse, 20_000, new Error(`axe stands still at ${path}`)).unref());
    try {
      const run = new AxeBuilder({ page }).setLegacyMode().analyze();
      return (await Promise.race([run, late])).violations;
    } catch (error) {
      if (attempt === 3) throw error;
    }
  }
}

async function accessible(browser) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1280, 320]) {
      await withPage(browser, { colorScheme, viewport: { width, height: 800 } }, async (page) => {
        for (const path of SCREENS) {
          const violations = await violationsOf(page, path);
          for (const { id, nodes } of violations) {
            for (const { html, failureSummary } of nodes) {
              faults.push(`axe ${colorScheme} ${width} ${path}: ${id}: ${html}\n${failureSummary}`);
            }
          }
          const over = await page.evaluate(() =>
            document.documentElement.scrollWidth - document.documentElement.clientWidth);
          if (over > 0) faults.push(`${path} is ${over} px too wide at ${width} px`);
        }
      });
    }
  }
}

run(300, async (browser) => {
  for (const name of WITHOUT_SCRIPTS) {
    await withPage(browser, { javaScriptEnabled: false }, flows[name]);
    console.log(`ok ${name} without JavaScript`);
  }
  await withPage(browser, { javaScriptEnabled: false }, flows.remove);
  for (const [name, flow] of Object.entries(flows)) {
    await withPage(browser, {}, flow);
    console.log(`ok ${name}`);
  }
  await accessible(browser);
});
