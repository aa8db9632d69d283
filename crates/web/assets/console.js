// Keeps a page up to date: hears of changes over server-sent events, reads the page again, and changes what differs.
// Without it every page can still be read, and every form be sent.

const csrf = document.querySelector('meta[name=csrf]')?.content ?? '';
const main = () => document.getElementById('main');

// --- What differs is changed, the rest is left: focus, selection, scrolling and open details stay. ---

const keyOf = (node) => node.nodeType === 1 ? node.id : '';

function morph(from, to) {
  if (from.isEqualNode(to)) return;
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) return void from.replaceWith(to);
  if (from.nodeType !== 1) return void (from.nodeValue = to.nodeValue);
  // What a user types or a stream writes is the user's.
  if (from.hasAttribute('data-keep')) return;
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !(from.nodeName === 'DETAILS' && name === 'open')) from.removeAttribute(name);
  }
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(from.nodeName)) return;
  morphChildren(from, to);
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (child.id) keyed.set(child.id, child);
  let here = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    const match = key ? keyed.get(key) : here && !keyOf(here) && here.nodeName === wanted.nodeName ? here : null;
    if (!match) {
      from.insertBefore(wanted, here);
    } else {
      if (match === here) here = here.nextSibling;
      else from.insertBefore(match, here);
      morph(match, wanted);
    }
    keyed.delete(key);
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

// --- Reading the page again: one request at a time, and one more if something changed meanwhile. ---

let reading = false;
let again = false;

async function refresh(url = location.href) {
  if (reading) return void (again = true);
  reading = true;
  try {
    const response = await fetch(url, { headers: { accept: 'text/html' } });
    if (response.redirected && new URL(response.url).pathname === '/login') return void location.reload();
    const page = new DOMParser().parseFromString(await response.text(), 'text/html');
    const fresh = page.getElementById('main');
    if (fresh) {
      morph(main(), fresh);
      document.title = page.title;
      prepare();
    }
  } catch {
    // The stream of events says so, and reconnects by itself.
  } finally {
    reading = false;
    if (again) {
      again = false;
      refresh();
    }
  }
}

// --- Hearing of changes. ---

const pulse = document.getElementById('pulse');

function say(mood, text) {
  if (!pulse) return;
  const said = pulse.querySelector('[data-said]');
  if (said.textContent === text) return;
  pulse.querySelector('.dot').className = `dot ${mood}`;
  pulse.querySelector('.dot').hidden = false;
  said.textContent = text;
}

let stream;
// What changed between the making of the page and the first word of the stream was not sent, either.
let lost = true;

function listen() {
  stream?.close();
  stream = undefined;
  const live = main()?.dataset.live;
  if (live === undefined || !pulse) return;
  stream = new EventSource(`/live?${live}`);
  stream.addEventListener('change', () => refresh());
  stream.addEventListener('cluster', ({ data }) => {
    const up = data === 'up';
    say(up ? 'good' : 'bad', up ? 'Live' : 'The cluster does not respond');
    // What was missed, or what there is to say about it.
    if (lost || !up) refresh();
    lost = !up;
  });
  // Not read again by itself: many browsers would drop each other's watches for ever.
  stream.addEventListener('dropped', () => say('bad', 'Too many users for live updates; reload the page'));
  stream.onerror = () => {
    lost = true;
    say('bad', 'The console does not respond; retrying');
    // Browsers give up on an answer that refuses.
    if (stream.readyState !== EventSource.CLOSED) return;
    // Where the session is over, the page that is read instead says how to sign in.
    refresh();
    setTimeout(listen, 2000);
  };
}

// --- The theme: that of the system, unless another is chosen. ---

const theme = document.getElementById('theme');
if (theme) {
  theme.closest('label').hidden = false;
  theme.value = document.documentElement.dataset.theme ?? '';
  theme.addEventListener('change', () => {
    if (theme.value) document.documentElement.dataset.theme = theme.value;
    else delete document.documentElement.dataset.theme;
    try {
      localStorage.setItem('theme', theme.value);
    } catch {
      // It applies until the next page.
    }
  });
}

// --- Ages grow without a reload. ---

function age(seconds) {
  const two = (big, b, small, s) => (small ? `${big}${b}${small}${s}` : `${big}${b}`);
  const m = Math.floor(seconds / 60), h = Math.floor(seconds / 3600), d = Math.floor(seconds / 86400);
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 600) return two(m, 'm', seconds % 60, 's');
  if (seconds < 10800) return `${m}m`;
  if (seconds < 28800) return two(h, 'h', m % 60, 'm');
  if (seconds < 172800) return `${h}h`;
  if (seconds < 691200) return two(d, 'd', h % 24, 'h');
  return d < 730 ? `${d}d` : two(Math.floor(d / 365), 'y', d % 365, 'd');
}

setInterval(() => {
  for (const time of document.querySelectorAll('time[data-ago]')) {
    const text = age(Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000)));
    if (time.textContent !== text) time.textContent = text;
  }
}, 1000);

// --- Values that change without an event. ---

const every = Number(document.querySelector('[data-every]')?.dataset.every);
if (every) setInterval(() => document.hidden || refresh(), every * 1000);

// --- What a fresh page needs. ---

function prepare() {
  const keys = document.getElementById('keys');
  if (keys) keys.hidden = false;
  for (const button of document.querySelectorAll('[data-copy][hidden]')) {
    if (navigator.clipboard) button.hidden = false;
  }
}

document.addEventListener('click', async ({ target }) => {
  const button = target.closest?.('[data-copy]');
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = 'Copy'), 1500);
});

// A slash goes to the search: of this page, or else of the models.
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.('input, select, textarea')) return;
  event.preventDefault();
  const search = document.querySelector('input[type=search]');
  if (search) search.select();
  else location.assign('/deployments#search');
});
if (location.hash === '#search') document.querySelector('input[type=search]')?.focus();

// Filters answer while one types.
let typing;
document.addEventListener('input', ({ target }) => {
  const form = target.closest?.('form[data-auto]');
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    history.replaceState(null, '', `${form.action.split('?')[0]}?${query}`);
    refresh();
  }, 150);
});

// A form is previewed while one types, and its last answer counts.
let asked = 0;
let waiting;
document.addEventListener('input', ({ target }) => {
  const form = target.closest?.('form[data-preview]');
  if (!form) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => preview(form, 'preview'), 250);
});

async function preview(form, then) {
  const turn = ++asked;
  const body = new URLSearchParams(new FormData(form));
  body.set('then', then);
  try {
    const response = await fetch(form.action, { method: 'POST', body });
    const page = new DOMParser().parseFromString(await response.text(), 'text/html');
    const fresh = page.getElementById(form.id);
    if (turn !== asked || !fresh) return;
    morph(form, fresh);
    // What is valid is compared with the nodes once nothing is typed for a while.
    if (then === 'preview' && form.querySelector('[data-fit]')) waiting = setTimeout(() => preview(form, 'fit'), 700);
  } catch {
    // The next key asks again.
  }
}

// A link to a field goes into it, also where it is folded away.
document.addEventListener('click', ({ target }) => {
  const link = target.closest?.('form a[href^="#"]');
  const field = link && document.getElementById(link.getAttribute('href').slice(1));
  if (!field) return;
  field.closest('details')?.setAttribute('open', '');
  field.focus();
});

// --- Answers that come bit by bit: logs and chat. ---

async function pour(response, into) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    into(value);
  }
}

// Enter sends, unless it ends the input of a character.
document.addEventListener('keydown', (event) => {
  const form = event.target.closest?.('form[data-chat]');
  if (!form || event.target.id !== 'message' || event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit(form.querySelector('[type=submit]'));
});

let answering;
document.addEventListener('click', ({ target }) => {
  if (target.closest?.('[data-stop]')) answering?.abort();
});

document.addEventListener('submit', async (event) => {
  const form = event.target.closest?.('form[data-chat]');
  if (!form) return;
  event.preventDefault();
  const box = form.elements.message;
  const text = box.value.trim();
  if (!text || answering) return;
  const talk = document.getElementById('talk');
  const add = (who, words) => {
    const turn = document.createElement('li');
    turn.className = who;
    turn.textContent = words;
    talk.append(turn);
    turn.scrollIntoView({ block: 'nearest' });
    return turn;
  };
  const history = [...talk.querySelectorAll('li.user, li.assistant')].map((turn) => ({ role: turn.className, content: turn.textContent }));
  add('user', text);
  box.value = '';
  talk.setAttribute('aria-busy', 'true');
  const roles = { text: 'assistant', reasoning: 'aside', 'tool-call': 'aside' };
  let turn;
  const write = (kind, words) => {
    const role = roles[kind] ?? kind;
    if (turn?.className !== role) turn = add(role, '');
    turn.textContent += words;
    turn.scrollIntoView({ block: 'nearest' });
  };
  const { system, temperature } = form.elements;
  const body = new URLSearchParams({ csrf, stream: 'true', message: text, history: JSON.stringify(history), system: system.value, temperature: temperature.value });
  const [send, stop] = [form.querySelector('[type=submit]'), form.querySelector('[data-stop]')];
  [send.hidden, stop.hidden] = [true, false];
  answering = new AbortController();
  const start = performance.now();
  let first, last, tokens = 0;
  try {
    const response = await fetch(form.action, { method: 'POST', body, signal: answering.signal });
    if (response.ok) {
      // Each line is a part of the answer.
      let rest = '';
      await pour(response, (text) => {
        const lines = (rest + text).split('\n');
        rest = lines.pop();
        for (const part of lines.map((line) => JSON.parse(line))) {
          if (part.kind in roles) {
            last = performance.now();
            first ??= last;
            tokens += 1;
          }
          write(part.kind, part.text);
        }
      });
    } else {
      write('fault', await response.text());
    }
  } catch (error) {
    if (answering.signal.aborted) write('note', 'Stopped.');
    else write('fault', `The response ended early: ${error.message}`);
  }
  if (first) {
    // Servers send a token at a time, so that parts are nearly tokens.
    const rate = tokens > 1 && last > first ? `, about ${((tokens - 1) / (last - first) * 1000).toFixed(1)} tokens/s` : '';
    add('note', `First token after ${((first - start) / 1000).toFixed(2)} s${rate}`);
  }
  answering = undefined;
  [send.hidden, stop.hidden] = [false, true];
  talk.removeAttribute('aria-busy');
  box.focus();
});

async function follow() {
  const log = document.querySelector('pre[data-follow]');
  if (!log) return;
  try {
    const response = await fetch(log.dataset.follow);
    if (!response.ok) return;
    log.textContent = '';
    await pour(response, (text) => {
      const end = log.scrollTop + log.clientHeight > log.scrollHeight - 40;
      log.append(text);
      // A page holds so much of a log and no more.
      while (log.childNodes.length > 2000) log.firstChild.remove();
      if (end) log.scrollTop = log.scrollHeight;
    });
  } catch {
    // What is there stays.
  }
}

prepare();
listen();
follow();
