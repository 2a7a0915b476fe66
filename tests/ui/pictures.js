// The pictures of the documentation, of a real node under traffic.
//
// Run by tests/cluster/pictures.rs with the node's address and the folder for the pictures.
"use strict";
const { run, withPage } = require("./browser.js");

const [site, folder] = process.argv.slice(2);
const SHOTS = [
  ["ui-overview", "/ui/", "light"],
  ["ui-limit", "/ui/limit?name=api-key", "light"],
  ["ui-key", "/ui/key?key=api-key:acme:7f3a", "light"],
  ["ui-cluster", "/ui/cluster", "dark"],
];

run(60, async (browser) => {
  for (const [name, path, colorScheme] of SHOTS) {
    await withPage(browser, { colorScheme }, async (page) => {
      await page.goto(site + path, { waitUntil: "domcontentloaded" });
      await page.waitForTimeout(1500);
      await page.screenshot({ path: `${folder}/${name}.png` });
    });
  }
});
