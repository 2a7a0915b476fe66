// The pictures of the documentation, of a real node under traffic.
//
// Run by tests/cluster/pictures.rs with the node's address, the folder for the pictures, and the
// tokens of an admin, an editor, a member of the support team and a viewer.
"use strict";
const { button, login, run, saveElsewhere, says, withPage } = require("./browser.js");

const [site, folder, ...tokens] = process.argv.slice(2);
const [admin, editor, support, viewer] = tokens;

async function goto(page, path) {
  await page.goto(site + path, { waitUntil: "domcontentloaded" });
}

const show = (path) => (page) => goto(page, path);

// Another editor saves the limit while this one has its form open.
async function conflict(page) {
  await goto(page, "/ui/limit?name=search");
  await page.getByLabel("Reason of the change").fill("longer result lists");
  await saveElsewhere(page, "gcra:30/m,burst=15");
  await page.getByLabel("Policy token").fill("gcra:40/m,burst=20");
  await button(page, "Save").click();
  await says(page, "412");
}

async function tried(page) {
  await goto(page, "/ui/limit?name=login");
  await page.getByLabel("Policy token").fill("sliding:3/m,slices=60,strict");
  await button(page, "Try on the last hour").click();
  await page.getByText("under this text.").scrollIntoViewIfNeeded();
}

async function history(page) {
  await goto(page, "/ui/limit?name=search");
  await page.getByRole("heading", { name: "History" }).evaluate((head) => head.scrollIntoView());
}

async function block(page) {
  await goto(page, "/ui/key?key=login:user7");
  await page.getByLabel("For", { exact: true }).fill("2h");
  await page.getByLabel("Note").fill("guesses passwords");
  await button(page, "✕ Block").click();
  await says(page, "in force");
}

const SHOTS = [
  ["ui-overview", admin, "light", show("/ui/")],
  ["ui-limit", admin, "light", show("/ui/limit?name=api-key")],
  ["ui-key", admin, "light", show("/ui/key?key=api-key:acme:7f3a")],
  ["ui-cluster", admin, "dark", show("/ui/cluster")],
  ["ui-hot", viewer, "light", show("/ui/hot?what=denied")],
  ["ui-try", editor, "light", tried],
  ["ui-conflict", editor, "light", conflict],
  ["ui-history", editor, "light", history],
  ["ui-block", support, "light", block],
  ["ui-audit", admin, "light", show("/ui/audit")],
];

run(120, async (browser) => {
  for (const [name, token, colorScheme, act] of SHOTS) {
    await withPage(browser, { colorScheme }, async (page) => {
      await login(page, site, token);
      await act(page);
      await page.waitForTimeout(1500);
      await page.screenshot({ path: `${folder}/${name}.png` });
    });
  }
});
