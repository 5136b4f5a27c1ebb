const base = process.env.ARTEL_HTTP ?? "http://localhost:8090";
const token = process.env.ARTEL_HTTP_TOKEN;

// Adds messages once, whatever happens to the answers. Returns their ids.
async function send(messages, { lane = "normal", key = crypto.randomUUID() } = {}) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  if (token) headers.Authorization = `Bearer ${token}`;
  for (let attempt = 0; attempt < 6; attempt++) {
    try {
      const body = JSON.stringify({ lane, messages });
      const answer = await fetch(`${base}/api/v1/messages`, { method: "POST", headers, body });
      const { ids, error } = await answer.json();
      if (answer.ok) return ids;
      if (answer.status < 500 && answer.status !== 429) throw new RangeError(error);
    } catch (error) {
      if (error instanceof RangeError) throw error; // It was refused; anything else may have been added.
    }
    await new Promise((done) => setTimeout(done, 200 * 2 ** attempt));
  }
  throw new Error("no answer");
}

console.log(...(await send([{ payload: "order 7" }, { payload: { order: 8 }, kind: "mail" }])));
