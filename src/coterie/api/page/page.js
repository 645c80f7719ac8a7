'use strict';
const make = (tag, text, name) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
};
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.get('token')) {
  sessionStorage.setItem('coterie-token', fragment.get('token'));
  history.replaceState(null, '', location.pathname);
}
const about = document.getElementById('about');
const ask = document.getElementById('ask');

function follow(schema, all) {
  while (schema && schema.$ref) schema = all[schema.$ref.split('/').pop()];
  return schema || {};
}
function sketch(schema, all, depth) {
  const name = schema && schema.$ref ? schema.$ref.split('/').pop() : null;
  const real = follow(schema, all);
  const choices = real.anyOf || real.oneOf;
  if (choices) {
    const kinds = choices.filter(one => one.type !== 'null');
    const text = kinds.map(one => sketch(one, all, depth)).join(' | ');
    return kinds.length < choices.length ? text + '?' : text;
  }
  if (real.const !== undefined) return JSON.stringify(real.const);
  if (real.enum) return real.enum.map(one => JSON.stringify(one)).join(' | ');
  if (real.type === 'array') return '[' + sketch(real.items, all, depth) + ']';
  if (real.properties) {
    if (depth > 3) return name || '{…}';
    const pad = '  '.repeat(depth + 1);
    const needed = new Set(real.required || []);
    const lines = Object.entries(real.properties).map(([key, value]) =>
      pad + key + (needed.has(key) ? '' : '?') + ': ' + sketch(value, all, depth + 1));
    return '{\n' + lines.join(',\n') + '\n' + '  '.repeat(depth) + '}';
  }
  return real.type || 'any';
}
function operation(verb, path, spec, all) {
  const box = make('details');
  const head = make('summary');
  head.append(make('span', verb.toUpperCase(), 'verb'), make('code', path), make('span', spec.description || spec.summary || '', 'what'));
  const body = make('div', undefined, 'body');
  if (spec.parameters && spec.parameters.length) {
    body.append(make('h3', 'Parameters'));
    const table = make('table');
    for (const one of spec.parameters) {
      const row = make('tr');
      row.append(make('td', one.name), make('td', one.in), make('td', one.required ? 'needed' : ''), make('td', one.description || ''));
      table.append(row);
    }
    body.append(table);
  }
  const wants = spec.requestBody && spec.requestBody.content['application/json'];
  if (wants) body.append(make('h3', 'Body'), make('pre', sketch(wants.schema, all, 0)));
  for (const [code, answer] of Object.entries(spec.responses)) {
    const shape = answer.content && answer.content['application/json'];
    if (code.startsWith('2')) {
      body.append(make('h3', code + ' ' + answer.description));
      if (shape) body.append(make('pre', sketch(shape.schema, all, 0)));
    }
  }
  const failures = Object.entries(spec.responses).filter(([code]) => !code.startsWith('2'));
  body.append(make('h3', 'Errors'));
  const table = make('table');
  for (const [code, answer] of failures) {
    const row = make('tr');
    row.append(make('td', code), make('td', answer.description));
    table.append(row);
  }
  body.append(table);
  box.append(head, body);
  return box;
}
async function show() {
  const token = sessionStorage.getItem('coterie-token');
  const answer = token && await fetch('/openapi.json', {headers: {Authorization: 'Bearer ' + token}});
  if (!answer || !answer.ok) {
    about.textContent = answer ? 'That token is not valid here.' : 'This page needs a token.';
    ask.hidden = false;
    return;
  }
  const doc = await answer.json();
  const all = doc.components.schemas;
  ask.hidden = true;
  about.textContent = doc.info.summary + ' Version ' + doc.info.version + '.';
  const groups = new Map();
  for (const [path, verbs] of Object.entries(doc.paths))
    for (const [verb, spec] of Object.entries(verbs)) {
      const tag = (spec.tags || ['other'])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(verb, path, spec, all));
    }
  const api = document.getElementById('api');
  api.replaceChildren();
  for (const [tag, boxes] of groups) api.append(make('h2', tag), ...boxes);
}
ask.addEventListener('submit', event => {
  event.preventDefault();
  sessionStorage.setItem('coterie-token', document.getElementById('token').value.trim());
  show();
});
show();
