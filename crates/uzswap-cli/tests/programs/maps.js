// Maps, objects, strings and buffers on node's heap; prints what they come to.
'use strict';
const crypto = require('crypto');

const count = 60000 * Number(process.argv[2]);
const map = new Map();
const objects = [];
for (let i = 0; i < count; i++) {
  map.set('key ' + i, { name: 'name of ' + i, list: [i, i * 2, i / 3], text: 'some text '.repeat(3) + i });
  if (i % 4 === 0) objects.push({ i, map: map.get('key ' + (i >> 1)) });
}
const buffers = [];
for (let i = 0; i < count / 40; i++) buffers.push(Buffer.alloc(8192, 'buffer ' + i));
for (let turn = 0; turn < 3; turn++) {
  const hash = crypto.createHash('sha256');
  for (const [key, value] of map) {
    hash.update(key);
    hash.update(value.text);
    value.list.push(turn);
    hash.update(value.list.join());
  }
  for (const object of objects) hash.update(object.i + object.map.name);
  for (const buffer of buffers) hash.update(buffer);
  for (let i = turn; i < count; i += 7) map.delete('key ' + i);
  console.log(turn, map.size, objects.length, hash.digest('hex'));
}
