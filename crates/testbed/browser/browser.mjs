// Opens pages of the console in Debian's Chromium, and notes what a browser complains about.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** The address that the console printed, with its key. */
export const URL_WITH_KEY = process.env.CONSOLE_URL;

export const launch = () => chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ['--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  chromiumSandbox: false,
});

/** Somebody in front of the console: a page of a browser that is in, and what it has complained about since. */
export async function visitor(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: 'light', ...options });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  const complaints = [];
  // A policy that is broken is told on the console, too.
  page.on('console', (message) => message.type() === 'error' && complaints.push(`${page.url()}: ${message.text()}`));
  page.on('pageerror', (error) => complaints.push(`${page.url()}: ${error}`));
  page.on('requestfailed', (request) => {
    // A stream of events ends with its page, and a page that is left takes what it was asking for along.
    if (request.failure()?.errorText !== 'net::ERR_ABORTED') complaints.push(`${request.url()}: ${request.failure()?.errorText}`);
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(new URL(URL_WITH_KEY).origin)) complaints.push(`${page.url()} asks elsewhere: ${request.url()}`);
  });
  await page.goto(URL_WITH_KEY);
  const at = (path) => new URL(path, URL_WITH_KEY).href;
  return { context, page, complaints, at, open: (path) => page.goto(at(path)) };
}

/** What axe has against a page, in a line each. */
export async function violations(page) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.flatMap(({ id, help, nodes }) =>
    nodes.map((node) => `${page.url()}: ${id}: ${help}: ${node.html.slice(0, 160)} (${node.any.map((a) => a.message).join('; ').slice(0, 200)})`));
}

/** By how many pixels a page is wider than its window, and what sticks out. */
export const overflow = (page) => page.evaluate(() => {
  const width = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > width + 1 && !e.closest('.scroll, pre'));
  const by = document.documentElement.scrollWidth - width;
  return by > 0 ? [`${location.pathname} is ${by}px too wide: ${out.slice(0, 3).map((e) => e.outerHTML.slice(0, 100)).join(' ')}`] : [];
});

/** The middle one. */
export const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

/** A picture for the docs, if pictures are asked for. */
export async function picture(page, name, options = {}) {
  const folder = process.env.PICTURES;
  if (folder) await page.screenshot({ path: `${folder}/${name}.png`, animations: 'disabled', ...options });
}
