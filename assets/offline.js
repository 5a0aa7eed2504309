// The server is asked for a small file now and then; while it does not answer, the page says so and offers no Stop.
let asking = false;
const look = async () => {
  if (document.hidden || asking) return;
  asking = true;
  const was = document.body.classList.contains("cc-offline");
  const answered = await fetch("favicon.ico", { cache: "no-store" }).then(() => true, () => false);
  asking = false;
  document.body.classList.toggle("cc-offline", !answered);
  if (was && answered) window.dispatchEvent(new Event("chatcache-online"));
};
setInterval(look, 3000);
