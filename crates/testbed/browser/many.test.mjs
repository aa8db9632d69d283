// The list of thousands of models stays usable.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { launch, median, violations, visitor } from './browser.mjs';

const COUNT = Number(process.env.COUNT);

let browser;
before(async () => { browser = await launch(); });
after(() => browser?.close());

test(`a list of ${COUNT} models`, async () => {
  const { context, page, complaints, open } = await visitor(browser);
  await open('/deployments');
  await page.getByText(`of ${COUNT}`).waitFor();
  const times = [];
  for (let round = 0; round < 5; round += 1) {
    await open(`/deployments?page=${round * 10 + 1}`);
    times.push(await page.evaluate(() => Math.round(performance.getEntriesByType('navigation')[0].loadEventEnd)));
  }
  assert.equal(await page.getByRole('row').count(), 101, 'a page holds so many rows and no more');
  const last = `many-${String(COUNT - 1).padStart(5, '0')}`;
  await page.getByRole('searchbox').pressSequentially(last);
  const start = Date.now();
  await page.getByText(`1–1 of 1 (of ${COUNT})`).waitFor();
  const searched = Date.now() - start;
  await page.getByRole('link', { name: last }).click();
  await page.getByRole('heading', { name: last }).waitFor();
  console.log(`${COUNT} models: a page of the list is there after ${median(times)} ms (median of 5), a search ${searched} ms after the last key`);
  assert.ok(median(times) < 2000, `${times}`);
  await open('/deployments');
  assert.deepEqual([...await violations(page), ...complaints], []);
  await context.close();
});
