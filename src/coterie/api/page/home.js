'use strict';
const part = id => document.getElementById(id);
// The fragment never leaves the browser; taken out of the address, it is in no history or bookmark either.
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.get('token')) {
  sessionStorage.setItem('coterie-token', fragment.get('token'));
  history.replaceState(null, '', location.pathname);
}
part('curl').textContent = part('curl').textContent.replace('http://127.0.0.1:18790', location.origin);

const call = (path, body) => fetch(path, {
  method: body ? 'POST' : 'GET',
  headers: {Authorization: 'Bearer ' + sessionStorage.getItem('coterie-token'), 'Content-Type': 'application/json'},
  body: body && JSON.stringify(body),
});

async function enter() {
  const answer = sessionStorage.getItem('coterie-token') && await call('/api/agents');
  part('ask').hidden = Boolean(answer && answer.ok);
  part('inside').hidden = !part('ask').hidden;
  part('refused').textContent = answer && !answer.ok ? 'That token is not valid here.' : '';
  if (!answer || !answer.ok) return;
  const house = await answer.json();
  const shown = house.agents.filter(one => one.state === 'active' && one.uiVisible);
  part('agent').replaceChildren(...shown.map(one => new Option(one.label, one.id, false, one.id === house.defaultId)));
}
part('ask').addEventListener('submit', event => {
  event.preventDefault();
  sessionStorage.setItem('coterie-token', part('token').value.trim());
  enter();
});
part('say').addEventListener('submit', async event => {
  event.preventDefault();
  const words = part('words').value.trim() || part('words').placeholder;
  part('answer').hidden = false;
  part('answer').textContent = '…';
  const message = {model: 'coterie/' + part('agent').value, user: 'browser', messages: [{role: 'user', content: words}]};
  const answer = await call('/v1/chat/completions', message);
  const body = await answer.json();
  part('answer').textContent = answer.ok ? body.choices[0].message.content : body.error.message;
});
enter();
