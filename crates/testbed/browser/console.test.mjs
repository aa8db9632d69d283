// The console in a real browser: `crates/testbed/tests/browser.rs` brings up what it shows, and runs this.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { launch, median, overflow, picture, violations, visitor } from './browser.mjs';

const PAGES = [
  ['overview', '/'],
  ['models', '/deployments'],
  ['model', '/deployments/default/gemma-cpu'],
  ['changes', '/deployments/default/gemma-cpu/diff'],
  ['logs', '/deployments/default/gemma-cpu/logs'],
  ['chat', '/deployments/default/gemma-cpu/chat'],
  ['yaml', '/deployments/default/gemma-cpu/yaml'],
  ['failed', '/deployments/default/too-big'],
  ['edit', '/deployments/default/gemma-cpu/edit'],
  ['delete', '/deployments/default/gemma-cpu/delete'],
  ['new', '/new'],
  ['providers', '/providers'],
  ['actors', '/actors'],
  ['actor', '/actors/default/upper'],
  ['stacks', '/stacks'],
  ['stack', '/stacks/default/starter'],
  ['admin', '/admin'],
];
/** Those that the docs show. */
const SHOWN = ['overview', 'model'];

let browser;
before(async () => { browser = await launch(); });
after(() => browser?.close());

for (const colorScheme of ['light', 'dark']) {
  test(`every page in ${colorScheme}: no complaint of the browser, none of axe, and narrow enough for a telephone`, async () => {
    const { context, page, complaints, open } = await visitor(browser, { colorScheme });
    const found = [];
    for (const [name, path] of PAGES) {
      const answer = await open(path);
      assert.equal(answer.status(), 200, path);
      await page.getByRole('heading', { level: 1 }).waitFor();
      found.push(...await violations(page));
      if (process.env.LOOK) await page.screenshot({ path: `${process.env.LOOK}/${name}-${colorScheme}.png`, fullPage: true });
      if (SHOWN.includes(name)) await picture(page, `console-${name}-${colorScheme}`);
      await page.setViewportSize({ width: 390, height: 844 });
      found.push(...await overflow(page));
      if (process.env.LOOK && colorScheme === 'light') await page.screenshot({ path: `${process.env.LOOK}/${name}-narrow.png`, fullPage: true });
      await page.setViewportSize({ width: 1280, height: 800 });
    }
    assert.deepEqual([...found, ...complaints], []);
    await context.close();
  });
}

test('a model is made, runs, is edited and deleted by clicks; the page follows by itself', async () => {
  const { context, page, complaints, open } = await visitor(browser);
  await open('/');
  await page.getByRole('link', { name: 'Deploy a model' }).click();
  const preview = page.locator('#preview');

  const deploy = page.getByRole('button', { name: 'Deploy', exact: true });
  await deploy.click();
  await page.getByRole('alert').getByText('Nothing was changed.').waitFor();
  assert.deepEqual(await page.locator('[aria-invalid=true]').evaluateAll((all) => all.map((e) => e.name)), ['spec.model.id']);

  await page.getByLabel('Model', { exact: true }).fill('https://huggingface.co/google/gemma-3-1b-it-qat-q8_0-gguf');
  // KAITO needs an image for this engine: the field is marked, and its group opens.
  await page.getByText('it cannot be derived').first().waitFor();
  await page.getByLabel('Name', { exact: true }).fill('by-clicks');
  await page.getByText('Replicas and resources').click();
  await page.getByLabel('Image').fill('ghcr.io/sozercan/llama-cpp-runner:latest');
  await preview.getByText('kind: InferenceSet').waitFor();
  await page.getByLabel('Replicas', { exact: true }).fill('two');
  await preview.getByText('1 field is invalid').waitFor();
  assert.equal(await page.getByLabel('Replicas', { exact: true }).getAttribute('aria-invalid'), 'true');
  await page.getByLabel('Replicas', { exact: true }).fill('1');
  await preview.getByText('kind: InferenceSet').waitFor();
  await preview.getByText('kaito', { exact: true }).first().waitFor();
  assert.equal(await page.locator('[aria-invalid=true]').count(), 0, 'what was wrong is still marked');
  assert.deepEqual(await violations(page), []);
  await page.evaluate(() => scrollTo(0, 0));
  await preview.getByText('The pods do not fit').waitFor();
  await picture(page, 'console-form-light');
  await deploy.click();
  // The cluster has no nodes.
  await page.getByRole('button', { name: 'Deploy anyway' }).click();

  await page.waitForURL('**/deployments/default/by-clicks');
  await page.locator('.title .pill.good', { hasText: 'Running' }).waitFor();
  await page.getByText('kubectl port-forward').waitFor();

  await page.getByRole('link', { name: 'Edit' }).click();
  await page.getByLabel('Served model name').fill('gemma');
  await preview.getByText('kind: InferenceSet').waitFor();
  await page.getByRole('button', { name: 'Save' }).click();
  await page.waitForURL('**/deployments/default/by-clicks');
  await page.getByText('Then send a request to model gemma').waitFor();

  await page.getByRole('link', { name: 'Delete' }).click();
  await page.getByRole('button', { name: 'Delete by-clicks' }).click();
  await page.waitForURL('**/deployments');
  await page.getByRole('link', { name: 'by-clicks' }).waitFor({ state: 'detached' });
  assert.deepEqual(complaints.filter((c) => !c.includes('status of 422')), []);
  await context.close();
});

test('a change reaches the page while it is looked at', async () => {
  const { context, page, at, open } = await visitor(browser);
  await open('/deployments/default/gemma-cpu');
  await page.getByText('Live', { exact: true }).waitFor();
  await page.evaluate(() => {
    globalThis.seen = [];
    const paused = () => [...document.querySelectorAll('.title .pill')].some((pill) => pill.textContent === 'Paused');
    let before = paused();
    new MutationObserver(() => {
      if (paused() !== before) globalThis.seen.push(Date.now());
      before = paused();
    }).observe(document.getElementById('main'), { subtree: true, childList: true, characterData: true });
  });
  // Another window of the same person changes it, as anybody might.
  const other = await context.newPage();
  await other.goto(at('/admin'));
  const rounds = [];
  for (let round = 0; round < 10; round += 1) {
    const [sent, done] = await other.evaluate(async (verb) => {
      const csrf = document.querySelector('meta[name=csrf]').content;
      const sent = Date.now();
      const answer = await fetch(`/deployments/default/gemma-cpu/${verb}`, { method: 'POST', body: new URLSearchParams({ csrf }), redirect: 'manual' });
      return [sent, Date.now(), answer.type];
    }, round % 2 ? 'resume' : 'pause');
    await page.waitForFunction((count) => globalThis.seen.length > count, round, { polling: 20 });
    const seen = await page.evaluate(() => globalThis.seen.at(-1));
    rounds.push({ fromSent: seen - sent, fromDone: seen - done });
  }
  const fromSent = median(rounds.map((r) => r.fromSent));
  const fromDone = median(rounds.map((r) => r.fromDone));
  console.log(`a change is on the page ${fromDone} ms after the API server has taken it, ${fromSent} ms after it was sent (medians of 10; slowest ${Math.max(...rounds.map((r) => r.fromSent))} ms after it was sent)`);
  // Aimed at: 200 ms. A machine that is busy may take longer, so that only what is far off fails.
  assert.ok(fromSent < 1000, JSON.stringify(rounds));
  await context.close();
});

test('a chat: Enter sends, Shift+Enter starts a line, Stop ends the answer, and its speed is shown', async () => {
  const { context, page, complaints, open } = await visitor(browser);
  // The simulator has no engine: the answer is played.
  const asked = [];
  await page.route('**/chat', async (route) => {
    if (route.request().method() !== 'POST') return route.continue();
    asked.push(new URLSearchParams(route.request().postData()));
    if (asked.length > 1) await new Promise((done) => setTimeout(done, 20_000).unref());
    const body = ['Hel', 'lo', '!'].map((text) => `${JSON.stringify({ kind: 'text', text })}\n`).join('');
    // A request that was stopped has no route any more.
    await route.fulfill({ contentType: 'application/x-ndjson', body }).catch(() => {});
  });
  await open('/deployments/default/gemma-cpu/chat');
  const box = page.getByLabel('Message to gemma-3-1b-it-qat-q8_0-gguf');
  await box.fill('one');
  await box.press('Shift+Enter');
  await box.pressSequentially('two');
  await page.getByText('System prompt and temperature').click();
  await page.getByLabel('System prompt').fill('Be brief');
  await page.getByLabel('Temperature').fill('0.2');
  await box.press('Enter');
  await page.getByText(/First token after [0-9.]+ s/).waitFor();
  assert.deepEqual(['message', 'system', 'temperature'].map((name) => asked[0].get(name)), ['one\ntwo', 'Be brief', '0.2']);
  await page.locator('#talk .assistant', { hasText: 'Hello!' }).waitFor();
  await box.fill('again');
  await box.press('Enter');
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stopped.').waitFor();
  await page.getByRole('button', { name: 'Send' }).waitFor();
  assert.deepEqual([...await violations(page), ...complaints], []);
  await context.close();
});

test('a slash goes to the search, and a theme stays', async () => {
  const { context, page, complaints, open } = await visitor(browser);
  await open('/providers');
  await page.keyboard.press('/');
  await page.waitForURL('**/deployments#search');
  assert.equal(await page.evaluate(() => document.activeElement.name), 'q');
  const scheme = () => page.evaluate(() => getComputedStyle(document.documentElement).colorScheme);
  await page.getByLabel('Theme').selectOption('dark');
  assert.equal(await scheme(), 'dark');
  await open('/admin');
  assert.equal(await scheme(), 'dark');
  assert.deepEqual(complaints, []);
  await context.close();
});

test('with the keyboard alone', async () => {
  const { context, page, complaints, open } = await visitor(browser);
  await open('/deployments');
  const press = (key) => page.keyboard.press(key);
  /** Tab, until something of that name has the focus; each stop must be visible as such. */
  const tabTo = async (name) => {
    for (let stop = 0; stop < 60; stop += 1) {
      await press('Tab');
      const [text, visible] = await page.evaluate(() => {
        const at = document.activeElement;
        const style = getComputedStyle(at);
        return [at.labels?.[0]?.textContent || at.textContent || at.name, style.outlineStyle !== 'none' && at.getBoundingClientRect().width > 0];
      });
      assert.ok(visible, `the focus on '${text}' cannot be seen`);
      if (`${text.trim()} `.startsWith(`${name} `)) return;
    }
    assert.fail(`no way to '${name}' with Tab`);
  };
  await tabTo('Skip to content');
  await press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'main');
  await tabTo('Deploy a model');
  await press('Enter');
  await page.waitForURL('**/new');
  await tabTo('Model');
  await page.keyboard.type('google/by-keys-gguf');
  await page.getByLabel('Image').waitFor();
  await tabTo('Image');
  await page.keyboard.type('example.org/llama:1');
  await page.locator('#preview').getByText('kind: InferenceSet').waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.name), 'spec.image', 'the preview took the focus away');
  await press('Enter');
  await page.getByRole('button', { name: 'Deploy anyway' }).waitFor();
  await tabTo('Deploy anyway');
  await press('Enter');
  await page.waitForURL('**/deployments/default/by-keys-gguf');
  await tabTo('Delete');
  await press('Enter');
  await page.waitForURL('**/delete');
  await tabTo('Delete by-keys-gguf');
  await press('Enter');
  await page.waitForURL('**/deployments');
  await page.getByRole('link', { name: 'by-keys-gguf' }).waitFor({ state: 'detached' });
  assert.deepEqual(complaints.filter((c) => !c.includes('status of 422')), []);
  await context.close();
});

test('without a script all can be read, and forms be sent', async () => {
  const { context, page, complaints, open } = await visitor(browser, { javaScriptEnabled: false });
  for (const [, path] of PAGES) {
    assert.equal((await open(path)).status(), 200, path);
  }
  await open('/deployments?q=gemma&phase=Running');
  await page.getByRole('link', { name: 'gemma-cpu' }).click();
  await page.getByText('kubectl port-forward').waitFor();
  await open('/new');
  await page.getByLabel('Model', { exact: true }).fill('google/gemma-gguf');
  await page.getByText('Engine, provider and image').click();
  await page.getByLabel('Image').fill('example.org/llama:1');
  await page.getByRole('button', { name: 'Preview' }).click();
  await page.getByText('kind: InferenceSet').waitFor();
  assert.deepEqual(complaints, []);
  await context.close();
});
