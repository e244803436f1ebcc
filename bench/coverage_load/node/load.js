// One producer of the coverage benchmark, with the client ali-ons, until its process is ended.
//
// Options as name=value: namesrv, topic, group, threads (sends under way), what ("tag and key",
// "bare"). Records, twice a second, one JSON object per line: the messages so far and the sends
// that failed.
'use strict';

const { Message, Producer } = require('ali-ons');

const TAGS = ['TagA', 'TagB', 'TagC', 'TagD'];
const BODY = 'x'.repeat(100);
const options = Object.fromEntries(process.argv.slice(2).map(word => word.split(/=(.*)/s)));
const quiet = { info() {}, debug() {}, warn() {}, error: console.error };

function message(number) {
  if (options.what === 'bare') return new Message(options.topic, BODY);
  const made = new Message(options.topic, TAGS[number % TAGS.length], BODY);
  made.keys = [`order-${number}`];
  return made;
}

async function main() {
  const producer = new Producer({
    httpclient: {}, // demanded, but only asked where no name server is given
    nameSrv: options.namesrv,
    producerGroup: options.group,
    logger: quiet,
  });
  producer.on('error', error => console.error(error));
  await producer.ready();
  let count = 0;
  let failed = 0;
  const report = () => console.log(
    JSON.stringify({ event: 'count', at_ms: Date.now(), count, failed }));
  report();
  setInterval(report, 500);
  const threads = Number(options.threads);
  for (let first = 0; first < threads; first++) {
    (async () => {
      for (let number = first; ; number += threads) {
        try {
          await producer.send(message(number));
          count++;
        } catch (error) {
          failed++;
        }
      }
    })();
  }
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
