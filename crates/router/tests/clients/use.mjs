// Uses the router as the pages of its clients show. Arguments: its address, a key, a model, and the sentence that the model answers.
// Prints a line of JSON: the tokens that the router reported to the clients.

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const [address, key, model, sentence] = process.argv.slice(2);
const messages = [{ role: 'user', content: 'Hello' }];
const tokens = { input: 0, output: 0 };

function expect(condition, what) {
  if (!condition) throw new Error(`not as expected: ${what}`);
}

function says(text, what) {
  expect(text.includes(sentence), `${what} answers ${JSON.stringify(text)}`);
}

async function fails(call, error, type) {
  const found = await call().then(() => undefined, (found) => found);
  expect(found instanceof error, `${found} is of ${error.name}`);
  expect((found.error?.error ?? found.error).type === type, `${JSON.stringify(found.error)} of the type ${type}`);
}

const openai = new OpenAI({ baseURL: `${address}/v1`, apiKey: key, maxRetries: 0 });
const listed = await openai.models.list();
expect(listed.data.some((one) => one.id === model), 'the list of models');
const whole = await openai.chat.completions.create({ model, messages });
says(whole.choices[0].message.content, "OpenAI's client");
tokens.input += whole.usage.prompt_tokens;
tokens.output += whole.usage.completion_tokens;
let text = '';
let usage;
const stream = await openai.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true },
});
for await (const part of stream) {
  text += part.choices[0]?.delta?.content ?? '';
  usage = part.usage ?? usage;
}
says(text, "a stream of OpenAI's client");
tokens.input += usage.prompt_tokens;
tokens.output += usage.completion_tokens;
await fails(() => openai.chat.completions.create({ model: 'absent', messages }), OpenAI.NotFoundError, 'model_not_found');
const wrong = openai.withOptions({ apiKey: 'wrong' });
await fails(async () => await wrong.models.list(), OpenAI.AuthenticationError, 'unauthenticated');

const claude = new Anthropic({ baseURL: address, apiKey: key, maxRetries: 0 });
// Tokens of a prompt that a cache had are not among Anthropic's input tokens.
const input = (usage) => usage.input_tokens + (usage.cache_read_input_tokens ?? 0);
const message = await claude.messages.create({ model, max_tokens: 64, messages });
says(message.content[0].text, "Anthropic's client");
tokens.input += input(message.usage);
tokens.output += message.usage.output_tokens;
const final = await claude.messages.stream({ model, max_tokens: 64, messages }).finalMessage();
says(final.content[0].text, "a stream of Anthropic's client");
tokens.input += input(final.usage);
tokens.output += final.usage.output_tokens;
await fails(() => claude.messages.create({ model: 'absent', max_tokens: 1, messages }), Anthropic.NotFoundError, 'not_found_error');

console.log(JSON.stringify(tokens));
