// The server is asked for a small file now and then, and at once when it was not reached; while it does not answer, not in
// time, or only that it is starting, the page says so and offers no Stop. After a restart it is another server, which knows nothing of this tab's connections: the page is loaded anew, draft and all.
const TIMEOUT_MS = 6000;
const ask = window.fetch.bind(window);
let asking = false;
let run = null;
const look = async () => {
  if (document.hidden || asking) return;
  asking = true;
  const was = document.body.classList.contains("cc-offline");
  const asked = ask("/favicon.ico", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  const answer = await asked.then((got) => (got.ok ? got : null)).catch(() => null);
  asking = false;
  document.body.classList.toggle("cc-offline", !answer);
  if (!answer) return;
  const running = answer.headers.get("x-chatcache-run");
  if (run && running && running !== run) return window.location.reload();
  run = running ?? run;
  if (was) window.dispatchEvent(new Event("chatcache-online"));
};
window.fetch = (...asked) => {
  const answer = ask(...asked);
  answer.catch(() => look());
  return answer;
};
look();
setInterval(look, 3000);
