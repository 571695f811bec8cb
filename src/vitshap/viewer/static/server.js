// The backend of the page of `vitshap serve`: its API, asked with fetch. See viewer.js for what a backend is.

const TRIES = 4;
const LONGEST_WAIT_S = 10;
const LOADING_S = 1;

function pause(seconds) { return new Promise((resolve) => { setTimeout(resolve, 1000 * seconds); }); }

export class Server {
  // address: where the API is, by default beside the page.
  // onToken: asked for the bearer token if the server wants one; onLoading: told that models are being loaded.
  constructor({ address = "v1/", onToken = async () => null, onLoading = () => {} } = {}) {
    Object.assign(this, { address: new URL(address, document.baseURI).href, token: null, onToken, onLoading });
  }

  async models() {
    for (;;) {
      try {
        return await (await this.ask("models")).json();
      } catch (error) {
        if (error.code !== "loading") { throw error; }
        this.onLoading();
        await pause(LOADING_S);
      }
    }
  }

  async explain(photo, { model, method, target, budget, signal, onProgress } = {}) {
    const body = new FormData();
    body.append("image", photo, photo.name ?? "photo");
    const headers = onProgress ? { Accept: "application/x-ndjson" } : {};
    const answer = await this.ask("explanations", { model, method, target, budget }, { method: "POST", body, headers, signal });
    if (!answer.headers.get("Content-Type")?.startsWith("application/x-ndjson")) { return answer.json(); }
    return lastResult(answer.body, onProgress);
  }

  async predict(photo, coalitions, { model, signal } = {}) {
    const body = new FormData();
    body.append("image", photo, photo.name ?? "photo");
    body.append("coalitions", JSON.stringify(coalitions));
    const answer = await this.ask("predictions", { model }, { method: "POST", body, signal });
    return answer.json();
  }

  // Ask, and if the server is busy wait as long as it says.
  async ask(path, query = {}, options = {}) {
    const url = new URL(path, this.address);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== null) { url.searchParams.set(name, value); }
    }
    for (let attempt = 1; ; attempt += 1) {
      let answer;
      try {
        const token = this.token === null ? {} : { Authorization: `Bearer ${this.token}` };
        answer = await fetch(url, { ...options, headers: { ...options.headers, ...token } });
      } catch (error) {
        if (error.name === "AbortError") { throw error; }
        throw new Error("the server does not answer: is vitshap serve still running?");
      }
      if (answer.ok) { return answer; }
      if (answer.status === 401) {
        const given = await this.onToken(this.token !== null);
        if (given !== null) { this.token = given; continue; }
      }
      if (answer.status !== 429 || attempt === TRIES) { throw await failure(answer); }
      await pause(Math.min(Number(answer.headers.get("Retry-After")) || 1, LONGEST_WAIT_S));
    }
  }
}

async function failure(answer) {
  try {
    const { code, message } = (await answer.json()).error;
    return Object.assign(new Error(message), { code });
  } catch { return new Error(`the server answered ${answer.status}`); }
}

// Read lines of JSON: progress is reported, the last line is the result.
async function lastResult(stream, onProgress) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += value ?? "";
    const lines = rest.split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines.filter((one) => one.trim())) {
      const message = JSON.parse(line);
      if (message.type === "result") { return message; }
      if (message.type === "error" || message.error) { throw new Error(message.error?.message ?? "the server stopped"); }
      onProgress(message);
    }
    if (done) { throw new Error("the server stopped before the result was there"); }
  }
}
