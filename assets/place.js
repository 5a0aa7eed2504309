// The tab begins where its address says. From then on the address follows the place.
const travel = () => {
  trigger("travelled", { session: new URLSearchParams(window.location.search).get("session") ?? "" });
};
let visit = 0;
watch("value", () => {
  const here = JSON.parse(props.value);
  const { session, temporary } = here;
  window.dispatchEvent(new CustomEvent("chatcache-place", { detail: { session: session ?? "", temporary } }));
  const url = new URL(window.location.href);
  if (here.session) url.searchParams.set("session", here.session);
  else url.searchParams.delete("session");
  if (url.href !== window.location.href) window.history.pushState(null, "", url);
  if (here.visit !== visit) {
    visit = here.visit;
    trigger("arrived");
  }
});
window.addEventListener("popstate", travel);
travel();

// A follower may have failed: look again now and then, and when the tab is looked at. A tab that nobody looks at gives
// its connection back after a while, for a browser has six for all its tabs together.
const lookAgain = () => {
  if (visit && !document.hidden) trigger("resumed");
};
let leaving = 0;
setInterval(lookAgain, 15000);
window.addEventListener("chatcache-online", lookAgain);
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.hidden) leaving = setTimeout(() => trigger("left"), 30000);
  else lookAgain();
});
